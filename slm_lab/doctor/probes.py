"""Probes that import torch or make envs: `python -m slm_lab.doctor.probes NAME`.

They run in other processes, so that a crash or a hang there is a finding. Each prints its findings
as JSON lines at once, so that those before it count too.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Literal

Status = Literal["ok", "warn", "fail"]

# An env of each family, and the module that it needs besides Gymnasium.
ENVS = (
    ("CartPole-v1", "gymnasium", ""),
    ("CartPole-v1", "envpool", "envpool"),
    ("LunarLander-v3", "gymnasium", "Box2D"),
    ("HalfCheetah-v5", "gymnasium", "mujoco"),
    ("ALE/Pong-v5", "auto", "ale_py"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding. `warn`: an optional feature does not work. `fail`: training does not work."""

    name: str
    status: Status
    found: str
    fix: str = ""


def probe_torch() -> None:
    try:
        import torch
    except ImportError as error:
        fix = "pip install slm-lab  (run-remote, list, pull and plot work without it)"
        _tell("torch", "warn", f"cannot be imported ({error}): nothing can be trained here", fix)
        return
    _tell("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} thread(s) by default")
    if torch.cuda.is_available():
        cards = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        _tell("GPU", "ok", ", ".join(cards))
    elif shutil.which("nvidia-smi"):
        fix = "install a build of torch for CUDA: https://pytorch.org/get-started/locally"
        _tell("GPU", "warn", "there is one (nvidia-smi), but this torch cannot use it", fix)
    else:
        _tell("GPU", "ok", "none; training runs on the CPU")
    _try_compiler()


def _try_compiler() -> None:
    import torch

    from slm_lab.agent.learning.compiler import compile_graph, has_cpp_compiler

    install = "sudo apt-get install g++  (or set CXX to a C++ compiler)"
    if not has_cpp_compiler():
        _tell("compiler", "warn", "no C++ compiler: the learning step runs eagerly", install)
        return
    began = time.monotonic()
    x = torch.linspace(0, 1, 7 + int(time.time()) % 1000)  # a shape that no cache has seen lately
    try:
        (y,) = compile_graph(lambda x: (x * x + 1,), [x])(x)
        right = torch.allclose(y, x * x + 1)
    except Exception as error:  # inductor raises its own, torch's and the compiler's errors
        reason = str(error).strip().splitlines() or [repr(error)]
        found = f"compiling fails, so the learning step runs eagerly: {reason[-1]:.200}"
        _tell("compiler", "warn", found, install)
        return
    if right:
        _tell("compiler", "ok", f"compiles and runs in {time.monotonic() - began:.1f} s")
    else:
        found = "what was compiled computes something else"
        _tell("compiler", "fail", found, "train with --compile off, and report it")


def probe_envs() -> None:
    if find_spec("gymnasium") is None:
        _tell("envs", "warn", "gymnasium is not installed", "pip install slm-lab")
        return
    from slm_lab.env.make import make_env
    from slm_lab.spec import EnvSpec

    for name, backend, module in ENVS:
        if module and find_spec(module) is None:
            continue
        label = f"env {name}" + (f" ({backend})" if backend == "envpool" else "")
        tree = {"name": name, "num_envs": 2, "max_frame": 1, "backend": backend}
        try:
            env = make_env(EnvSpec.model_validate(tree), seed=0)
            env.reset()
            env.close()
        except Exception as error:  # whatever the engine of an env may raise
            reason = str(error).strip().splitlines() or [repr(error)]
            _tell(label, "fail", f"{reason[0]:.200}", f"slm-lab env check {name}")
        else:
            _tell(label, "ok", "is made and reset")


def _tell(name: str, status: Status, found: str, fix: str = "") -> None:
    sys.stdout.write(json.dumps(asdict(Finding(name, status, found, fix))) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    {"torch": probe_torch, "envs": probe_envs}[sys.argv[1]]()
