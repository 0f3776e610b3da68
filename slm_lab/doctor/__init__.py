"""`slm-lab doctor`: what this machine can do, what is missing, and the command that mends it.

`checks.py` holds the checks, one function each; `probes.py` what needs torch or an env, and so runs
in processes of its own: a crash or a hang there is a finding, and without torch the rest works.
"""
