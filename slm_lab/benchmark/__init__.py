"""Benchmark tables, made from a manifest of rows and the results of their runs.

| file | holds |
|---|---|
| phase*.yaml, sources.yaml | the manifest: specs to run, and scores to compare with |
| manifest.py | the manifest as frozen data, checked against its specs |
| result.py | the result of a run, small enough to commit, and its plots |
| collect.py | run folder -> result; checks of results and run folders |
| state.py | status of each row: done, running, missing, failed |
| runner.py | run the missing rows, within a budget |
| table.py | results -> docs/BENCHMARKS.md |
| graduate.py | run folders of the development hub -> the public one |
"""

from pathlib import Path

# Default places in the repository; commands take others as flags.
MANIFEST_DIR = Path("slm_lab/benchmark")
RESULTS_DIR = Path("results")
PAGE = Path("docs/BENCHMARKS.md")
PLOTS_DIR = Path("docs/plots")
