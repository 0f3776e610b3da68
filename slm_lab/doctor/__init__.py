"""`slm-lab doctor`: checks of this machine, each with the command that fixes a problem."""
