"""What every test run starts from: one thread, no display, the same examples each time."""

import os

# Before torch, matplotlib or pygame load: small nets on many threads are slower and not repeatable
# across machines, and a test must not look for a screen.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["SDL_VIDEODRIVER"] = "dummy"

from hypothesis import settings

# A property test draws the same examples on every run, and a busy machine is no failure.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
