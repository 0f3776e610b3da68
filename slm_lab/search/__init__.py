"""A search: many trials of one spec, each with its own values, over one machine or a cluster.

plan.py        validate what a spec asks for: space, trials, rungs, resources; estimate its cost
space.py       from a point in the unit cube to the values of a trial
sampler.py     choose the next point: Optuna, random, grid
run.py         a search from beginning to end
reporter.py    specs, tables, graphs, best spec and validation of a search
state.py       journal, sampler and scheduler of a running search, kept in step
engine.py      Ray Tune runs the trials
ray_setup.py   settings of Ray, the cluster to run on, what a trial takes of it
scheduler.py   early stopping (ASHA) that can be rebuilt from the journal
worker.py      a trial in its Ray process
rounds.py      the sessions of a trial advance together and report their mean
processes.py   the processes that a search has started, for `--stop-ray`
display.py     the live table
speed.py       measure how fast a spec trains

Only engine.py, ray_setup.py, scheduler.py and worker.py import ray.
"""
