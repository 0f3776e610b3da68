"""Both remotes, and a run folder to send there."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# Before huggingface_hub loads: the server here speaks LFS, not Xet, and nothing asks the real hub.
os.environ["HF_HUB_DISABLE_XET"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"

import huggingface_hub.utils._http as hub_http

from slm_lab.hub.directory import DirectoryRemote
from slm_lab.hub.huggingface import HuggingFaceRemote
from slm_lab.hub.remote import Remote, file_sha256
from slm_lab.runs.checkpoint_manifest import MANIFEST, CheckpointManifest, FileEntry


def _load(name: str) -> Any:
    """A module beside this one; tests/ has no packages."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


hub_server = _load("hub_server")
FOLDER = "ppo_cartpole_2026_01_30_221924"
REPO = "team/runs"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A hub on loopback with one public dataset, and a token that may write to it."""
    with hub_server.HubServer() as server:
        server.datasets[REPO] = hub_server.Dataset()
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_REPO", REPO)
        monkeypatch.setenv("HF_TOKEN", "hf_writer")
        # The library waits seconds between attempts; how often it tries is left as it is.
        clock = SimpleNamespace(sleep=lambda seconds: None, time=time.time)
        monkeypatch.setattr(hub_http, "time", clock)
        monkeypatch.setattr("huggingface_hub.file_download.time", clock)
        yield server


@pytest.fixture
def share(tmp_path: Path) -> Path:
    path = tmp_path / "share"
    path.mkdir()
    return path


@pytest.fixture(params=["hub", "directory"])
def remote(request: pytest.FixtureRequest) -> Remote:
    """What holds for one remote holds for the other."""
    if request.param == "hub":
        request.getfixturevalue("hub")
        return HuggingFaceRemote(REPO)
    return DirectoryRemote(request.getfixturevalue("share"))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run folder as a run leaves it, small and large files, one session with a checkpoint."""
    return make_run(tmp_path / "data" / FOLDER)


def make_run(path: Path) -> Path:
    name = path.name.rsplit("_", 4)[0]
    for folder in ("info", "model", "log", "checkpoint"):
        (path / folder).mkdir(parents=True)
    (path / f"{name}_t0_spec.json").write_text('{"name": "spec"}\n')
    (path / "info" / f"{name}_t0_s0_session_df_train.csv").write_text("frame\n100\n")
    (path / "model" / f"{name}_t0_s0_net_model.pt").write_bytes(bytes(range(256)) * 20)
    (path / "log" / f"{name}_t0.log").write_text("a line\n" * 300)
    (path / "checkpoint" / "run.lock").write_text("{}")
    write_checkpoint(path / "checkpoint" / f"{name}_t0_s0" / "last", frame=100)
    return path


def write_checkpoint(folder: Path, *, frame: int) -> None:
    """Sealed by a manifest, as a session writes it; its content depends on the frame."""
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(f'{{"frame": {frame}}}')
    (folder / "tensors.safetensors").write_bytes(f"{frame:08d}".encode() * 400)
    files = {
        path.name: FileEntry(path.stat().st_size, file_sha256(path)) for path in folder.iterdir()
    }
    manifest = CheckpointManifest(
        folder.parent.name, "0" * 64, {}, {"frame": frame}, False, "now", files
    )
    (folder / MANIFEST).write_bytes(manifest.to_bytes())


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run folder that is shared, by its path in it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


@pytest.fixture
def kit() -> SimpleNamespace:
    return SimpleNamespace(
        FOLDER=FOLDER,
        REPO=REPO,
        contents=contents,
        make_run=make_run,
        write_checkpoint=write_checkpoint,
        Dataset=hub_server.Dataset,
    )


@pytest.fixture
def slm_lab(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., tuple[int, str, str]]:
    """Run a command line in this process: (exit code, stdout, stderr)."""
    from slm_lab.cli.main import main

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["slm-lab", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return call
