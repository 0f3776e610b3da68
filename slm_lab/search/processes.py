"""The processes that a search has started, so that `--stop-ray` can end those and no others.

A process is identified by its id and the time it started: the id alone may by now belong to
another one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

import psutil
from loguru import logger

from slm_lab.runs.files import read_json, write_atomic

STOP_SECONDS = 90.0  # for a search to write its files
FILE = "processes.json"
MAX_BYTES = 1_000_000


def remember_processes(search_dir: Path) -> None:
    """Write down this process, and the ones of the Ray it has just started."""
    here = psutil.Process()
    children = here.children(recursive=True)  # Ray's agents are children of its raylet
    started = {"search": identity(here), "ray": [identity(child) for child in children]}
    write_atomic(search_dir.parent, search_dir / FILE, json.dumps(started) + "\n")


def identity(process: psutil.Process) -> dict[str, float]:
    return {"pid": process.pid, "started": process.create_time()}


def forget_processes(search_dir: Path) -> None:
    (search_dir / FILE).unlink(missing_ok=True)


def clear_remains(search_dir: Path) -> None:
    """End what a killed search has left running, and remove its Ray's session folder."""
    try:
        pid, _, processes = _read(search_dir)
        if psutil.pid_exists(pid):
            return
    except (ValueError, KeyError, TypeError, OverflowError):  # no such file, or not one of ours
        return
    _end(processes)
    for folder in Path(tempfile.gettempdir(), "ray").glob(f"session_*_{pid}"):
        shutil.rmtree(folder, ignore_errors=True)
    forget_processes(search_dir)


def stop_searches(data_dir: Path) -> list[Path]:
    """End the searches below a data folder as Ctrl-C does, and what they started; returns their
    folders."""
    stopped = []
    for file in sorted(data_dir.glob(f"*/ray_tune/{FILE}")):
        try:
            _, search, processes = _read(file.parent)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            logger.warning(f"{file}: names no processes, and is left alone ({error!s:.200})")
            continue
        if search is not None and search.pid != os.getpid():
            search.send_signal(signal.SIGINT)
            psutil.wait_procs([search], timeout=STOP_SECONDS)
        _end(processes)
        file.unlink(missing_ok=True)
        if search is not None or processes:
            stopped.append(file.parents[1])
    return stopped


def _read(search_dir: Path) -> tuple[int, psutil.Process | None, list[psutil.Process]]:
    """The process id of a search, its process if it still runs, and those of its Ray that do."""
    started = read_json(search_dir.parent, search_dir / FILE, MAX_BYTES)
    processes = [found for known in started["ray"] if (found := _find(known))]
    return int(started["search"]["pid"]), _find(started["search"]), processes


def _find(known: dict[str, float]) -> psutil.Process | None:
    try:
        process = psutil.Process(int(known["pid"]))
        is_same = abs(process.create_time() - known["started"]) < 1.0
    except psutil.Error:
        return None
    return process if is_same and process.is_running() else None


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        if process.is_running():
            process.terminate()
    _, stubborn = psutil.wait_procs(processes, timeout=10)
    for process in stubborn:
        process.kill()
