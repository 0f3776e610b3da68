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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from loguru import logger

from slm_lab.runs.files import read_json, write_atomic

STOP_SECONDS = 90.0  # for a search to write its files
FILE = "processes.json"
MAX_BYTES = 1_000_000


def children() -> list[psutil.Process]:
    """The processes below this one; Ray's agents are children of its raylet."""
    return list(psutil.Process().children(recursive=True))


def remember_processes(search_dir: Path) -> None:
    """Write down this process, and the ones of the Ray it has just started."""
    ray = [identity(child) for child in children()]
    started = {"search": identity(psutil.Process()), "ray": ray}
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
    folders = list(Path(tempfile.gettempdir(), "ray").glob(f"session_*_{pid}"))
    # Of a search that was killed while its Ray started, no process is known but by its log.
    end_processes([*processes, *_with_files_in(folders)])
    for folder in folders:
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
        end_processes(processes)
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


def _with_files_in(folders: Sequence[Path]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter() if folders else ():
        with suppress(psutil.Error):
            opened = [Path(file.path) for file in process.open_files()]
            if any(path.is_relative_to(folder) for path in opened for folder in folders):
                found.append(process)
    return found


def end_processes(processes: Sequence[psutil.Process]) -> None:
    """End those that still run, if need be by SIGKILL."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, stubborn = psutil.wait_procs(processes, timeout=10)
    for process in stubborn:
        with suppress(psutil.NoSuchProcess):
            process.kill()
