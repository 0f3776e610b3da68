"""Executors run the sessions of a trial: in processes of this machine, or on a Ray cluster.

session_job.py      what an executor is, and one session from start to end
local.py            sessions in this process, or in processes of this machine
ray_cluster.py      sessions on the nodes of a Ray cluster
ray_connection.py   connect to a Ray cluster
shipping.py         copy a remote session's files into the run folder while they grow
"""
