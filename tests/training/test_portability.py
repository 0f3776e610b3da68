"""Systems that lack what Linux has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WITHOUT_FCNTL = """
import sys
sys.modules["fcntl"] = None  # as on Windows
from slm_lab.spec import SpecError, load_spec
from slm_lab.training.executors.local import shared_nets

spec = load_spec("benchmark/ppo/ppo_cartpole.json", "ppo_cartpole")
with shared_nets(spec) as shared:
    assert shared is None
try:
    with shared_nets(spec.with_values({"meta.distributed": "synced"})):
        pass
except SpecError as error:
    print(error)
"""


def test_without_file_locks_only_distributed_training_is_refused():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FCNTL],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "meta.distributed: found `synced`; this system has no locks" in done.stdout
