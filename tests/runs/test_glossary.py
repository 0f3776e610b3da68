"""docs/GLOSSARY.md explains every column and metric of the code, and no other."""

from __future__ import annotations

from pathlib import Path

from slm_lab.analysis.metrics import TRIAL_SCALARS
from slm_lab.runs.glossary import COLUMNS, METRICS, label, meaning, page
from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.training.recorder import BASE_COLUMNS

OF_ALL = {*BASE_COLUMNS, "grad_norm", "last_100_return", "last_100_length"}


def test_every_column_of_every_algorithm_is_explained_and_nothing_else():
    of_algorithms = {column for info in ALGORITHMS.values() for column in info.columns}
    assert of_algorithms | OF_ALL == set(COLUMNS)


def test_every_metric_of_a_trial_is_explained():
    assert set(TRIAL_SCALARS) <= {*COLUMNS, *METRICS}


def test_the_page_is_what_the_code_says():
    written = Path(__file__).parents[2] / "docs" / "GLOSSARY.md"
    fix = "run: slm-lab spec --glossary > docs/GLOSSARY.md"
    assert written.read_text() == page(), fix


def test_a_column_of_the_users_own_has_its_name_as_label_and_no_meaning():
    assert label("my_metric") == "my metric"
    assert meaning("my_metric") == ""
    assert label("approx_kl") == "approximate KL"
