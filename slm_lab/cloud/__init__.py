"""Runs on rented machines, through dstack: what is submitted, and how. No torch here.

`task.py` builds the task from a file in `.dstack/`, `code.py` says how the code gets there, and
`dstack.py` talks to dstack's command line. What happens on the machine is in `.dstack/start.sh`.
"""
