"""Where the sessions of a trial run: processes of this machine, or the nodes of a Ray cluster."""
