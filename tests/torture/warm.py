"""What makes victims cheap: a process that has loaded everything, of which they are copies."""

from __future__ import annotations

import functools
import gc
import importlib
import multiprocessing.util
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import typer.main

# What commands load when they run, besides the packages of ours.
MODULES = (
    "PIL.BmpImagePlugin",
    "PIL.GifImagePlugin",
    "PIL.JpegImagePlugin",
    "PIL.PpmImagePlugin",
    "dash.backends._flask",
    "email.headerregistry",
    "flask.testing",
    "gymnasium.envs.classic_control",
    "imageio_ffmpeg",
    "matplotlib.backends.backend_agg",
    "plotly.io",
    "pyarrow.pandas_compat",
    "pydantic.type_adapter",
    "pygame",
    "rich._emoji_codes",
    "sympy",
    "werkzeug.debug",
)


@contextmanager
def warmed_up() -> Iterator[None]:
    """Load everything, and leave it alone while copies of this process are made.

    Without the freeze, a collection in a copy would touch, and so copy, all of the memory.
    """
    import slm_lab

    ours = (module.name for module in pkgutil.walk_packages(slm_lab.__path__, "slm_lab."))
    for module in (*ours, *MODULES):
        with suppress(ImportError):  # an extra that is not installed; other versions of libraries
            importlib.import_module(module)
    build = typer.main.get_command
    typer.main.get_command = functools.cache(build)
    try:
        from slm_lab.cli.main import app

        typer.main.get_command(app)
        gc.collect()
        gc.freeze()
        yield
    finally:
        gc.unfreeze()
        typer.main.get_command = build


# In a victim


def copy_instead_of_spawning() -> None:
    """Let multiprocessing start its processes as copies of this one.

    As after an exec, a copy has only the descriptors that it was given and no handlers of signals.
    """
    multiprocessing.util.spawnv_passfds = _copy  # type: ignore[assignment]


def quick(body: Callable[[], None]) -> Callable[[], None]:
    """A training whose sessions are copies of its process, and which draws no graphs."""

    def quickly() -> None:
        from contextlib import nullcontext

        from slm_lab.analysis import experiment_plot, trial_graphs
        from slm_lab.api import run as training

        def nothing(*_: Any, **__: Any) -> None: ...

        trial_graphs.draw_trial = nothing
        experiment_plot.plot_experiment = nothing
        vars(training)["live_graphs"] = lambda *_, **__: nullcontext()
        copy_instead_of_spawning()
        body()

    return quickly


def exit_as(body: Callable[[], object]) -> None:
    """Run `body` and end this process as Python would."""
    import traceback

    code: Any = 0
    try:
        body()
    except SystemExit as exit_:
        code = exit_.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)  # noqa: T201
            code = 1
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
        os._exit(code or 0)


def _copy(path: str, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
    """Do what `multiprocessing.util.spawnv_passfds` does; the arguments are those of `python`."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        at = [*arguments].index("-c") + 1
        sys.argv = ["-c", *arguments[at + 1 :]]
        exit_as(lambda: _begin(arguments[at], descriptors))
    return pid


def _begin(code: str, descriptors: Sequence[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (0, 1, 2, *descriptors):
            with suppress(OSError):
                os.close(int(name))
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    exec(code, {"__name__": "__main__"})
