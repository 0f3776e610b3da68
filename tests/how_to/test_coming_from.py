"""The tables of names for those who come from another library: what stands for ours exists."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import slm_lab
from slm_lab import extend
from slm_lab.agent.agent import Agent
from slm_lab.api.result import Result
from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.spec.callback import CALLBACKS
from slm_lab.spec.env import EnvSpec
from slm_lab.spec.keywords import SHORT
from slm_lab.spec.memory import MEMORIES
from slm_lab.spec.net import NETS
from slm_lab.spec.optim import SCHEDULERS
from slm_lab.spec.schema import MetaSpec

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
KEYS = {
    *SHORT,
    *(key for blocks in (ALGORITHMS, MEMORIES, NETS) for key in blocks.keys_of_specs()),
    *EnvSpec.model_fields,
    *MetaSpec.model_fields,
    *(f"critic_{key}" for key in NETS.keys_of_specs()),
    *(record.name for record in CALLBACKS.values()),
    *SCHEDULERS,
    *slm_lab.__all__,
    *extend.__all__,
}
PARAMETERS = {*inspect.signature(slm_lab.train).parameters, "agent", "result", "env"}


@pytest.mark.parametrize("page", ["beside-stable-baselines3", "from-cleanrl"])
def test_every_name_of_ours_in_a_table_of_names_is_one(page):
    text = (PAGES / f"{page}.md").read_text().partition("## Names")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .* \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) > 20
    names = [name for row in rows for name in re.findall(r"`([a-z]\w+|[A-Z]\w+)(?=[`=])", row)]
    assert len(names) > 25
    assert [name for name in names if name not in KEYS | PARAMETERS] == []


@pytest.mark.parametrize(
    ("owner", "names"),
    [(Result, ["evaluate", "plot", "agent", "df"]), (Agent, ["predict", "save"])],
)
def test_the_methods_in_those_tables_exist(owner, names):
    assert [name for name in names if not hasattr(owner, name)] == []
