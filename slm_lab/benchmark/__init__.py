"""Benchmark tables, made from a manifest of rows and the results of their runs.

| file | holds |
|---|---|
| phase*.yaml | the manifest: specs to run, and scores to compare with |
| sources.yaml, documents.yaml | the documents, and what the specs that they name had |
| manifest.py | the manifest as frozen data, checked against its specs |
| seeds.py | the fingerprint of a spec, and the seeds that follow from it |
| ledger.py | every attempt at a row |
| result.py, plots.py | the result of a row, small enough to commit, and plots |
| collect.py | run folders -> result |
| audit.py | checks of results, ledgers, run folders and the page |
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
