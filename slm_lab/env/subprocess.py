"""The subprocess back-end: Gymnasium envs in worker processes, for envs that are slow.

Each worker runs a `GymnasiumVectorEnv` over neighbouring slots of the batch, seeded as the whole
batch would be. Numbers, endings and saved states are therefore those of that back-end, for any
number of workers.

An order to a worker is a name and its arguments in a pipe; rows go through memory that all
processes map. Workers are spawned: a fork would copy the locks of torch, BLAS and Ray in whatever
state their threads hold them. They do not run the main module again, so a script needs no guard.
An env that a script or notebook has registered reaches them by value.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from multiprocessing import util
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import cloudpickle
import numpy as np
from loguru import logger
from threadpoolctl import ThreadpoolController

from slm_lab.env.episode_log import NOT_RESTORED
from slm_lab.env.error import EnvError
from slm_lab.env.registry import find_registered, make_gymnasium_env
from slm_lab.env.shared_rows import Layout, SharedRows, memory_file, rows_layout
from slm_lab.env.space import Codecs
from slm_lab.env.vector import (
    GymnasiumVectorEnv,
    VectorEnv,
    check_batch,
    check_saved_batch,
    is_same_obs,
    shares,
    spawn_streams,
)
from slm_lab.error import LabError
from slm_lab.runs.child_process import STOP_SIGNALS, start_process, unblock_stop_signals
from slm_lab.spec.env import EnvSpec
from slm_lab.spec.trust import module_of
from slm_lab.types import Rows, Transition, on_host

CLOSE_SECONDS = 10.0  # for the workers to close their envs


class WorkerError(EnvError):
    """An env that raised in its worker, or a worker that died."""

    exit_code = 1


class _WorkerTraceback(Exception):
    """The traceback of an error in a worker, as the cause of the error here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


# The session's side


class SubprocessVectorEnv(VectorEnv):
    """A VectorEnv whose envs run in worker processes, `env.num_threads` of them.

    The workers are told to step, and then waited for, all together. They end with this object,
    with its process, however that one ends, and after an error in any of them.
    """

    backend = "subprocess"
    obs: np.ndarray

    def __init__(self, spec: EnvSpec, *, seed: int, cores: int | None = None) -> None:
        """By default there are as many workers as `cores`, or as the machine has."""
        if os.name == "nt":
            raise EnvError(
                "env.backend: `subprocess` runs on Linux and macOS. Set it to `gymnasium`."
            )
        parts = shares(spec.num_envs, spec.num_threads or cores or os.cpu_count() or 1)
        seeds, _ = spawn_streams(seed, spec.num_envs)
        tasks = _tasks(spec, [seeds[part.start : part.stop] for part in parts])
        names = [_describe(spec.name, number, part, parts) for number, part in enumerate(parts)]
        self._workers: list[_Worker] = []
        # Also when the object is dropped, and before multiprocessing waits for its children at the
        # end of this process.
        self._release = util.Finalize(self, _end, (self._workers,), exitpriority=1)
        for name, part in zip(names, parts, strict=True):
            self._workers.append(_Worker.start(name, part))
        codecs: Codecs = self._ask_each("make", [(task,) for task in tasks])[0]
        super().__init__(spec.num_envs, codecs.obs, codecs.action, seed)
        self._started = False
        self._share_memory()

    def _share_memory(self) -> None:
        action = self._action_codec.sample(np.random.default_rng(0), self.num_envs)
        self._final_obs = self._blank_obs()
        layout = rows_layout(self._action_codec.decode(action), self._final_obs)
        with memory_file(layout) as file:
            self._shared = SharedRows.mapped(file, layout)
            orders = [(file.name, layout, worker.slots) for worker in self._workers]
            self._ask_each("share", orders)
        self._turn = 0
        self.obs = self._shared.obs[0]
        self._episode_end = np.zeros(self.num_envs, bool)

    @property
    def restorable(self) -> bool:
        return all(self._ask("restorable"))

    def reset(self) -> np.ndarray:
        self.episodes.abandon()
        self._ask("reset", self._next_turn())
        self._started = True
        return self.obs

    def step(self, action: Rows) -> Transition:
        check_batch(action, self.num_envs)
        rows = action if isinstance(action, np.ndarray) else on_host(action)
        shared = self._shared
        shared.actions[...] = self._action_codec.decode(rows)
        self._ask("step", self._next_turn())
        np.logical_or(shared.terminated, shared.truncated, out=self._episode_end)
        ended = np.flatnonzero(self._episode_end)
        self.episodes.add(shared.reward, ended)
        obs = next_obs = self.obs
        if len(ended):
            next_obs = self._final_obs
            next_obs[:] = obs
            next_obs[ended] = shared.final_obs[ended]
        ends = shared.terminated, shared.truncated, self._episode_end
        return Transition(obs, next_obs, shared.reward, *ends)

    def close(self) -> None:
        self._release()

    def state_dict(self) -> dict[str, Any]:
        """What `GymnasiumVectorEnv` would save."""
        running, restorable = self._ask("running"), self.restorable
        return super().state_dict() | {
            "started": self._started,
            "running": list(chain.from_iterable(running)) if restorable else [],
            "obs": self.obs.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the saved episodes; warn and begin new ones where a replay is not exact."""
        check_saved_batch(state, self.num_envs)
        super().load_state_dict(state)
        if not state["started"]:
            return
        self._started = True
        turn, running = self._next_turn(), state["running"]
        parts = [running[worker.slots.start : worker.slots.stop] for worker in self._workers]
        self._ask_each("replay", [(turn, part) for part in parts])
        if not is_same_obs(self.obs, state["obs"]):
            logger.warning(NOT_RESTORED)
            self.episodes.abandon()
            self._ask("begin_anew", self._next_turn())

    def _next_turn(self) -> int:
        """Change to the other array of observations: the last one survives the next step."""
        self._turn = 1 - self._turn
        self.obs = self._shared.obs[self._turn]
        return self._turn

    def _ask(self, order: str, *arguments: Any) -> list[Any]:
        return self._ask_each(order, repeat(arguments, len(self._workers)))

    def _ask_each(self, order: str, arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Give all workers an order, let them work side by side, and return their answers."""
        if not self._release.still_active():
            raise EnvError("env.backend: the workers of this env were closed. Make a new env.")
        try:
            for worker, given in zip(self._workers, arguments, strict=True):
                worker.send(order, given)
            return [worker.receive() for worker in self._workers]
        except BaseException:  # interrupted, some would answer this order when asked for the next
            self.close()
            raise


@dataclass(frozen=True, slots=True)
class _Worker:
    """A worker process as the session sees it: `name` is for messages."""

    name: str
    slots: range
    process: SpawnProcess
    pipe: Connection

    @classmethod
    def start(cls, name: str, slots: range) -> _Worker:
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs,), name=name)
        start_process(process)
        theirs.close()  # so that the pipe ends when the worker does
        return cls(name, slots, process, pipe)

    def send(self, order: str, arguments: tuple[Any, ...]) -> None:
        with suppress(OSError):  # it died: there will be no answer either
            self.pipe.send((order, arguments))

    def receive(self) -> Any:
        try:
            answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(CLOSE_SECONDS)
            raise WorkerError(f"env.backend: {self.name} {_death(self.process.exitcode)}") from None
        if not isinstance(answer, _Failure):
            return answer
        cause = _WorkerTraceback(answer.traceback)
        if answer.is_clear:
            raise EnvError(answer.text) from cause
        logger.debug("{}", answer.traceback)
        raise WorkerError(f"env.name: {self.name} failed: {answer.text}") from cause


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error in a worker; `is_clear` if its text is a message of ours."""

    text: str
    is_clear: bool
    traceback: str


def _describe(env_name: str, number: int, slots: range, parts: Sequence[range]) -> str:
    envs = f"env {slots[0]}" if len(slots) == 1 else f"envs {slots[0]} to {slots[-1]}"
    return f"worker {number} of {len(parts)}, with {envs} of `{env_name}`,"


def _death(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}, as an env that calls exit does"
    killer = signal.Signals(-exit_code).name
    return f"was killed by {killer}" + (
        ", as processes are when the memory is full" if killer == "SIGKILL" else ""
    )


def _end(workers: Sequence[_Worker]) -> None:
    """Close the pipes, which tells the workers to close their envs and end; kill those too slow."""
    until = time.monotonic() + CLOSE_SECONDS
    for worker in workers:
        worker.pipe.close()
    for worker in workers:
        worker.process.join(max(0.0, until - time.monotonic()))
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join()


def _tasks(spec: EnvSpec, seeds: Iterable[Sequence[int]]) -> list[bytes]:
    """What each worker makes, as bytes, or an error if it cannot be sent to another process."""
    registered = find_registered(spec)
    name = registered.entry_point
    if isinstance(name, str) and name.startswith("__main__:"):  # of this process, not of a worker
        registered.entry_point = getattr(sys.modules["__main__"], name.removeprefix("__main__:"))
    # A module that `env.name` names registers its envs in the worker, too.
    sent = None if module_of(spec.name) else registered
    try:
        return [cloudpickle.dumps((spec, sent, of_worker)) for of_worker in seeds]
    except Exception as error:  # whatever an object raises that cannot be pickled
        raise EnvError(
            f"env.backend: what `{spec.name}` was registered with cannot be sent to a worker "
            f"process ({error}). Register it in a module `my_envs`, and set env.name to "
            f"`my_envs:{spec.name}`, or env.backend to `gymnasium`."
        ) from error


# The worker's side


def _work(pipe: Connection) -> None:
    """Carry out orders until the other end of the pipe closes."""
    threading.Thread(target=_end_with_session, daemon=True).start()
    for number in STOP_SIGNALS:
        # The session decides when to stop. A handler, because what an env starts would inherit
        # signals that are ignored.
        signal.signal(number, lambda *_: None)
    unblock_stop_signals()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # if an env brings torch: workers are the threads
    ThreadpoolController().select(internal_api="openblas").limit(limits=1)
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    part = _Part()
    while True:
        try:
            order, arguments = pipe.recv()
        except (EOFError, OSError):
            break
        answer: Any
        try:
            answer = getattr(part, order)(*arguments)
        except Exception as error:  # whatever an env raises
            is_clear = isinstance(error, LabError)
            text = str(error) if is_clear else f"{type(error).__name__}: {error}"
            answer = _Failure(text, is_clear, traceback.format_exc().rstrip())
        with suppress(OSError):  # the session is gone, and this process is about to be
            pipe.send(answer)
    part.close()


def _end_with_session() -> None:
    """End at once when the session's process dies, by whatever signal, also within a slow step."""
    session = multiprocessing.parent_process()
    if session is not None:
        session.join()
        os._exit(1)


class _Part:
    """The envs of one worker, and their rows in the shared memory. Its methods are the orders."""

    _env: GymnasiumVectorEnv | None = None
    _shared: SharedRows

    def make(self, task: bytes) -> Codecs:
        spec, registered, seeds = pickle.loads(task)
        registered = registered or find_registered(spec)
        envs = [make_gymnasium_env(spec, registered) for _ in seeds]
        self._env = GymnasiumVectorEnv(envs, seed=seeds, action_mask=spec.action_mask)
        return self._env.codecs

    def share(self, path: str, layout: Layout, slots: range) -> None:
        with open(path, "r+b") as file:
            self._shared = SharedRows.mapped(file, layout, slice(slots.start, slots.stop))

    @property
    def env(self) -> GymnasiumVectorEnv:
        assert self._env is not None, "`make` is the first order"
        return self._env

    def reset(self, turn: int) -> None:
        self._shared.obs[turn][...] = self.env.reset()

    def step(self, turn: int) -> None:
        shared = self._shared
        step = self.env.step_decoded(shared.actions.copy())
        shared.obs[turn][...] = step.obs
        shared.reward[...] = step.reward
        shared.terminated[...] = step.terminated
        shared.truncated[...] = step.truncated
        if step.next_obs is not step.obs:
            ended = step.episode_end
            shared.final_obs[ended] = on_host(step.next_obs)[ended]

    def restorable(self) -> bool:
        return self.env.restorable

    def running(self) -> list[dict[str, Any]]:
        running: list[dict[str, Any]] = self.env.state_dict()["running"]
        return running

    def replay(self, turn: int, running: Sequence[Mapping[str, Any]]) -> None:
        self.env.replay(running)
        self._shared.obs[turn][...] = self.env.obs

    def begin_anew(self, turn: int) -> None:
        self.env.begin_anew()
        self._shared.obs[turn][...] = self.env.obs

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
