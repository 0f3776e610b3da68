"""The Python API, where training and analysis meet.

run.py          train a spec or search over it: check the command, make the folder, train, analyse
results.py      redo the graphs of a run from its files, score its agents on fresh episodes
live_graphs.py  graphs of a trial while it trains, drawn by the process of graph_process.py
"""
