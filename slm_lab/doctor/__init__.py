"""`slm-lab doctor`: checks of this machine, each with the command that fixes a problem.

`checks.py` holds one function per check. `probes.py` holds those that need torch or an env; they
run in other processes, so that a crash or a hang there is a finding.
"""
