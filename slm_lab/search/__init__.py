"""A search: many trials of one spec, each with its own values, over one machine or a cluster.

plan.py        validate what a spec asks for: space, trials, rungs, resources; estimate its cost
space.py       choose a point in the unit cube; from there to the values of a trial
run.py         a search from beginning to end, and what it writes
engine.py      Ray Tune runs the trials; journal, sampler and scheduler are kept in step
ray_setup.py   settings of Ray, the cluster to run on, what a trial takes of it
worker.py      a trial in its Ray process; its sessions advance together
processes.py   the processes that a search has started, for `--stop-ray`
display.py     the live table

Only engine.py, ray_setup.py and worker.py import ray.
"""
