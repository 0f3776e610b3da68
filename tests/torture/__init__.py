"""The harness that attacks slm_lab: kills, damage, links, faults, broken specs, hostile peers.

`make torture` runs it on purpose, `test_slice.py` a slice of it with the other tests. Each attack
is a file of its own; `attack.py` has what they share.
"""
