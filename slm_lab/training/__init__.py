"""Training: the loop, a session (one seed), a trial (all seeds), and what they record.

options.py      options of a run that are not in the spec
trial.py        run all sessions of a trial, through an executor of executors/
distributed.py  `meta.distributed`: exchange the nets' state, in the worker
session.py      one seed: envs, agent, loop, recorder; its whole state
loop.py         act, step, observe, update; play whole episodes without learning
seeding.py      random streams from one seed
threads.py      threads of a session

recorder.py     metrics of a session, in its CSV, in TensorBoard and in Weights & Biases
console.py      log files, and progress at the terminal
watchers.py     `--render` and `--profile`

saving.py       when a session saves, and what; resuming; trained nets as plain state dicts
checkpoint.py   a session's state as a folder of JSON, arrays and rows of a replay
"""
