"""Algorithms: pure losses, and the classes that minimise them."""
