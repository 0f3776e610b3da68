"""The run folder on disk: how its files are read and written. Imports no torch."""
