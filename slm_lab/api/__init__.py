"""The Python API, where training and analysis meet.

run.py          train a spec or search over it: check the command, make the folder, train, analyse
evaluate.py     score the saved agents of a run on fresh episodes
analyze.py      redo metrics, tables and graphs of a run from its files
live_graphs.py  graphs of a trial while it trains, drawn by a process of their own
"""
