"""The Python API: train, search, evaluate and analyse; training and analysis meet here."""
