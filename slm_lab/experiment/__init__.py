"""Who runs what, and when: the loop, a session, a trial over seeds, and what they write."""
