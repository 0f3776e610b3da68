"""Runs on rented machines through dstack; imports no torch.

`task.py` builds the task from a file in `.dstack/`, `code.py` packs the code, and `dstack.py` calls
dstack's command line. `.dstack/start.sh` runs on the machine.
"""
