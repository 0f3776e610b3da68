"""Weights & Biases with the real package, offline: nothing leaves the machine."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slm_lab.runs.layout import RunLayout
from slm_lab.spec import SpecError
from slm_lab.training.recorder import WandbSink, check_wandb

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # no account of whoever runs the tests


def records(folder: Path) -> list[dict[str, Any]]:
    """What an offline run has stored: its name and group, then its rows. Its own process writes
    the last of them just after it has let ours go."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    kinds: list[str] = []
    deadline = time.monotonic() + 60
    while "exit" not in kinds and time.monotonic() < deadline:
        time.sleep(0.05)
        stored = [Record.FromString(data) for data in entries(path.read_bytes())]
        kinds = [record.WhichOneof("record_type") for record in stored]
    found: list[dict[str, Any]] = []
    for record in stored:
        match record.WhichOneof("record_type"):
            case "run":
                found.append({"run": record.run.display_name, "group": record.run.run_group})
            case "history":
                items = {(i.key or i.nested_key[0]): i.value_json for i in record.history.item}
                found.append({key: json.loads(value) for key, value in items.items()})
    return found


def entries(data: bytes) -> Iterator[bytes]:
    """A log in the format of LevelDB after 7 bytes of its own: checksum, length, kind, content; an
    entry that crosses a block of 32 KiB comes in parts (kinds 2, 3, 4)."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def test_a_session_is_a_run_in_the_group_of_its_trial_with_what_tensorboard_gets(
    tmp_path, make_spec
):
    layout = RunLayout.create("demo", "now", tmp_path)
    sink = WandbSink(make_spec(), layout, 0, 1)
    sink.scalars(100, {"total_reward": 20.0, "loss": math.nan})
    sink.scalars(200, {"total_reward": 30.0, "loss": 0.5})
    sink.close()
    run, *rows = records(layout.predir)
    assert run == {"run": "demo_t0_s1", "group": "demo_now_t0"}
    kept = [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows]
    assert kept[:2] == [
        {"frame": 100, "total_reward": 20.0},
        {"frame": 200, "total_reward": 30.0, "loss": 0.5},
    ]


def test_what_goes_wrong_there_is_a_warning_and_not_the_end_of_a_run(
    tmp_path, make_spec, monkeypatch
):
    import wandb

    def fail(**_: object) -> None:
        raise RuntimeError("no network")

    monkeypatch.setattr(wandb, "init", fail)
    sink = WandbSink(make_spec(), RunLayout.create("demo", "now", tmp_path), 0, 0)
    sink.scalars(100, {"total_reward": 20.0})
    sink.close()


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SpecError, match=r"slm-lab\[wandb\]"):
        check_wandb()


def test_without_an_account_it_is_refused_before_anything_is_trained(monkeypatch):
    monkeypatch.delenv("WANDB_MODE")
    with pytest.raises(SpecError, match="WANDB_MODE=offline"):
        check_wandb()


def test_a_trial_of_two_sessions_leaves_two_runs_in_one_group(tmp_path):
    """Sessions are processes of their own, and each tells W&B for itself."""
    code = """
from slm_lab import RunOptions, load_spec, run
sets = ["meta.max_session=2", "env.max_frame=1000", "meta.log_frequency=500", "meta.compile=off"]
if __name__ == "__main__":
    spec = load_spec("benchmark/ppo/ppo_cartpole.json", "ppo_cartpole", sets=sets)
    run(spec, "train", RunOptions(wandb=True, log_level="ERROR"))
"""
    script = tmp_path / "train.py"
    script.write_text(code)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    env.pop("WANDB_SERVICE", None)  # that of the tests before
    subprocess.run([sys.executable, script], cwd=tmp_path, env=env, check=True)
    runs = sorted(path.stem for path in tmp_path.glob("data/*/wandb/offline-run-*/*.wandb"))
    assert [name.rsplit("_", 2)[1:] for name in runs] == [["t0", "s0"], ["t0", "s1"]]
    tables = sorted(tmp_path.glob("data/*/info/*_session_df_train.csv"))
    assert len(tables) == 2
