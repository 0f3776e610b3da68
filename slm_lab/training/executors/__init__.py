"""Executors run the sessions of a trial: in processes of this machine, or on a Ray cluster."""
