"""A search: many trials of one spec, each with its own values, over one machine or a cluster.

plan.py      what the spec asks for, checked: space, trials, rungs, resources
space.py     a point in the unit cube -> the values of a trial
sampler.py   which point comes next: Optuna, random, grid
run.py       a search from beginning to end: trials, tables, graphs, validation
rounds.py    one trial: its sessions advance together and report their mean
engine.py    Ray Tune runs the trials; the only files that import ray are this and worker.py
display.py   the live table
"""
