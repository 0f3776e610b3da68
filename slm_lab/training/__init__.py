"""The training loop, a session, a trial over seeds, and what they record."""
