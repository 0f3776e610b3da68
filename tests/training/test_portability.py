"""Systems that lack what Linux has: what needs it says so, and the rest works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What Windows lacks is taken away before slm_lab is imported. Libraries, which are made for each
# system, are imported before.
LIBRARIES = "import gymnasium, matplotlib.pyplot, pandas, torch\n"
AS_ON_WINDOWS = """
import filelock, loguru, multiprocessing.process, os, psutil, shutil, signal, subprocess, sys

subprocess.Popen.kill = subprocess.Popen.terminate  # by SIGKILL here
shutil._use_fd_functions = False
EXTRAS = ("dash", "huggingface_hub", "jax", "optuna", "ray", "wandb")
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", *EXTRAS):
    sys.modules[name] = None
for name in (
    "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK fork getuid geteuid killpg mkfifo nice "
    "posix_fallocate sched_getaffinity setsid"
).split():
    delattr(os, name)
for name in "SIGALRM SIGCHLD SIGHUP SIGKILL SIGUSR1 pthread_sigmask setitimer".split():
    delattr(signal, name)
os.supports_dir_fd = set()


def without(function, *names):
    def refusing(*arguments, **keywords):
        found = [name for name in names if keywords.pop(name, None) is not None]
        if found:
            raise NotImplementedError(f"{function.__name__} has no {found}")
        return function(*arguments, **keywords)

    return refusing


for name in ("open", "mkdir", "unlink", "stat"):
    setattr(os, name, without(getattr(os, name), "dir_fd"))
for name in ("replace", "link"):
    setattr(os, name, without(getattr(os, name), "src_dir_fd", "dst_dir_fd"))
"""


def on_windows(code: str, folder: Path, libraries: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", libraries + AS_ON_WINDOWS + code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


IMPORT_ALL = """
import importlib, pkgutil
import slm_lab
failed = []
for module in pkgutil.walk_packages(slm_lab.__path__, "slm_lab."):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS:
            failed.append((module.name, repr(error)))
print(failed)
"""
TRAIN = """
import warnings
from pathlib import Path
from slm_lab import evaluate, load_agent, train
from slm_lab.hub.directory import DirectoryRemote
from slm_lab.hub.transfer import pull, push

result = train("PPO", env="CartPole-v1", frames=256, time_horizon=64, compile="off", seed=1)
assert result.frame == 256, result
print("trained", result.predir)
agent, env = load_agent(result.predir)
agent.act(env.reset(), explore=False)
assert evaluate(result.predir, episodes=2).mean > 0
Path("share").mkdir()
push(DirectoryRemote(Path("share")), result.predir)
pull(DirectoryRemote(Path("share")), result.predir.name, Path("elsewhere"))
assert load_agent(Path("elsewhere") / result.predir.name)
print("shared")
"""
LINKS = """
from pathlib import Path
from slm_lab.runs import files
from slm_lab.spec.run_folder import RunFolderError

Path("run/info").mkdir(parents=True)
Path("secret").write_text("secret")
Path("run/info/file").symlink_to(Path("secret").resolve())
Path("run/other").symlink_to(Path("run/info").resolve())
folder = Path("run")
files.write_atomic(folder, folder / "log" / "new" / "x", "text")
assert files.read_text(folder, folder / "log" / "new" / "x") == "text"
assert files.plain_files(folder, folder / "log" / "new") == [folder / "log" / "new" / "x"]
files.remove_file(folder, folder / "log" / "new" / "x")
for use in (
    lambda: files.read_text(folder, folder / "info" / "file"),
    lambda: files.write_atomic(folder, folder / "info" / "file", "x"),
    lambda: files.write_atomic(folder, folder / "other" / "y", "x"),
    lambda: files.open_for_append(folder, folder / "info" / "file"),
):
    try:
        use()
    except RunFolderError as error:
        print("is a link" in str(error))
print(Path("secret").read_text())
"""
PROCESS = """
import multiprocessing
from slm_lab.runs.child_process import block_stop_signals, start_process, unblock_stop_signals

process = multiprocessing.get_context("spawn").Process(target=os.getpid)
start_process(process)
process.join()
assert process.exitcode == 0
block_stop_signals()
unblock_stop_signals()
"""
DISTRIBUTED = """
from slm_lab.spec import SpecError, load_spec
from slm_lab.training.executors.local import shared_nets

spec = load_spec("benchmark/ppo/ppo_cartpole.json", "ppo_cartpole")
with shared_nets(spec) as shared:
    assert shared is None
try:
    with shared_nets(spec.with_values({"meta.distributed": "synced"})):
        pass
except SpecError as error:
    print(" ".join(str(error).split()))
"""


@pytest.mark.slow
def test_every_module_is_imported_and_training_replay_and_sharing_work(tmp_path: Path) -> None:
    lines = on_windows(IMPORT_ALL + TRAIN, tmp_path, LIBRARIES).splitlines()
    assert lines[0] == "[]"
    assert "shared" in lines


def test_no_link_is_followed_and_only_distributed_training_is_refused(tmp_path: Path) -> None:
    *links, secret, refusal = on_windows(LINKS + PROCESS + DISTRIBUTED, tmp_path).splitlines()
    assert (links, secret) == (["True"] * 4, "secret")
    assert "meta.distributed: found `synced`; this system has no locks" in refusal
