"""Executors run the sessions of a trial: in processes of this machine, or on a Ray cluster.

local.py        one session from start to end, here or in a process of this machine
ray_cluster.py  sessions on the nodes of a Ray cluster
shipping.py     copy a remote session's files into the run folder while they grow
"""
