"""Benchmarks as code: a table is a function of run folders.

| file | holds |
|---|---|
| phase*.yaml, sources.yaml | the manifest: what is run, and what it is compared with |
| manifest.py | the manifest as frozen data, checked against the specs it names |
| result.py | what is kept of a run, small enough to commit |
| collect.py | run folder -> result |
| state.py | where each row stands: done, running, missing, failed |
| runner.py | run what is missing, within a budget |
| plot.py, table.py | results -> curves and docs/BENCHMARKS.md |
| audit.py | what is wrong with a result or a run folder |
| graduate.py | run folders of the development hub -> the public one |
"""

from pathlib import Path

# Where things lie in the repository; commands take other places as flags.
MANIFEST_DIR = Path("slm_lab/benchmark")
RESULTS_DIR = Path("results")
PAGE = Path("docs/BENCHMARKS.md")
PLOTS_DIR = Path("docs/plots")
