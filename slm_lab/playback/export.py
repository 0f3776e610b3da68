"""Export a saved agent as one file: observation of the env in, action for the env out.

The file holds every step between the two: the conversion of images and of discrete observations,
the frozen normaliser, the net, the most likely action, squashing, and the scale of the env's box.

    input   obs [B, ...] as the env gives it: float32, uint8 for images, int64 for integers. With
            env.frame_stack it is the stacked observation; a Dict or Tuple is flattened, frame
            by frame, as `gymnasium.spaces.flatten` does; the action mask, of an env that has one,
            comes last
    output  action [B, ...] as the env's `step` takes it

A file is kept only if, after reading it back, it acts as the agent in memory does.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from slm_lab.agent.agent import Agent
from slm_lab.env import space
from slm_lab.env.space import Codecs, OneHot
from slm_lab.env.vector import VectorEnv
from slm_lab.env.wrapper import Frames
from slm_lab.playback.saved_agent import load_session
from slm_lab.runs.files import path_beside
from slm_lab.runs.find import SavedRun
from slm_lab.spec.run_folder import RunFolderError
from slm_lab.types import on_host

Format = Literal["torch-export", "torchscript", "onnx"]
NumpyFunction = Callable[[np.ndarray], np.ndarray]
Write = Callable[[nn.Module, Tensor, Path], None]
SUFFIXES: dict[Format, str] = {"torch-export": ".pt2", "torchscript": ".ts", "onnx": ".onnx"}

RECORDED_STEPS = 64
RANDOM_ROWS = 256
TOLERANCE = 1e-4  # of the size of an action; reordered float32 sums differ by some 1e-6


class ExportError(RunFolderError):
    """An agent that cannot be exported, or a file that does not act as its agent does."""


def export_policy(
    run: SavedRun,
    session: int,
    *,
    best: bool = True,
    format: Format = "torch-export",
    out: Path | None = None,
) -> Path:
    """Write the deterministic policy of a session, verify it, and return its path."""
    if not run.spec.agent.algorithm_info.learns:
        raise ExportError("agent.algorithm.name: Random has no policy; there is nothing to export.")
    if run.spec.agent.net.sequence_length is not None:
        raise ExportError(
            f"agent.net.type: {run.spec.agent.net.type} acts on a history, and a file of obs "
            "-> action has none. Export an agent with another net, or load this one with "
            "slm_lab.load_agent."
        )
    packages = ("onnx", "onnxscript", "onnxruntime") if format == "onnx" else ()
    if missing := ", ".join(name for name in packages if importlib.util.find_spec(name) is None):
        raise ExportError(f"--format onnx: needs {missing}. Run `pip install 'slm-lab[onnx]'`.")
    path = out or run.layout.policy_path(
        run.trial, session, SUFFIXES[format], best=best, checkpoint=run.checkpoint
    )
    agent, env = load_session(run, session, best, num_envs=4)
    try:
        codecs = portable(env.codecs)
        obs = sample_observations(agent, env, codecs)
        expected = live_actions(agent, codecs, obs)
        policy = Policy(agent, codecs)
    finally:
        env.close()
    folder = run.layout.predir if out is None else None
    with path_beside(path, f".{path.name}.part{SUFFIXES[format]}", folder, ExportError) as beside:
        with warnings.catch_warnings(action="ignore"):  # torch deprecates its own exporters
            write, read = _FORMATS[format]
            write(policy, torch.from_numpy(obs[:2]), beside)
            exported = read(beside)
        check_actions(exported, obs, expected, path)
    return path


class Policy(nn.Module):
    """obs -> action of an agent for one kind of env, as a single traceable module."""

    def __init__(self, agent: Agent, codecs: Codecs) -> None:
        super().__init__()
        self.net = agent.algorithm.modules["net"]  # so that its parameters keep their names
        self._act = agent.policy
        self._encode = obs_encoder(codecs)
        self._decode = action_decoder(codecs)

    def forward(self, obs: Tensor) -> Tensor:
        return self._decode(self._act(self._encode(obs)))


def portable(codecs: Codecs) -> Codecs:
    """Codecs with one input: the parts of a Dict or Tuple observation as one flat vector."""
    obs = codecs.obs
    if isinstance(obs, space.Parts):
        return Codecs(FlatParts(obs, obs.shape), codecs.action)
    if isinstance(obs, Frames) and isinstance(obs.frame, space.Parts):
        return Codecs(FlatParts(obs.frame, obs.shape, obs.k), codecs.action)
    return codecs


class FlatParts(space.ObsCodec):
    """The parts of an observation as one float32 row, each in the env's own order.

    Rows for the agent are float32, too, also where those of the env are bytes. Of several frames
    there is such a row each, in the `shape` of the env's own: (frames, width), or one after the
    other.
    """

    def __init__(self, parts: space.Parts, shape: tuple[int, ...], frames: int = 1) -> None:
        self._parts, self._frames = parts, frames
        self.codecs = [leaf.codec for leaf in parts.leaves]
        self.sizes = [math.prod(codec.shape) for codec in self.codecs]
        width = sum(self.sizes)
        super().__init__((frames * width,) if len(shape) == 1 else (frames, width))

    def write(self, obs: np.ndarray, out: np.ndarray) -> None:
        out[...] = self.encode(torch.from_numpy(obs)).numpy()

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Flat observations from the env's rows [N, ...]."""
        flat, frames = [], rows.reshape(len(rows) * self._frames, -1)
        for leaf in self._parts.leaves:
            part = leaf.place(frames)
            if isinstance(leaf.codec, space.ChannelsFirst):
                part = leaf.codec.read(part)
            flat.append(part.reshape(len(frames), -1).astype(np.float32))
        return np.concatenate(flat, -1).reshape(-1, *self.shape)

    def encode(self, obs: Tensor) -> Tensor:
        """Flat observations in the order of the agent's rows."""
        encoded = []
        frames = torch.split(obs.reshape(-1, sum(self.sizes)), self.sizes, -1)
        for codec, part in zip(self.codecs, frames, strict=True):
            if isinstance(codec, space.ChannelsFirst):
                channels, height, width = codec.shape
                image = part.reshape(-1, height, width, channels)
                encoded.append(image.permute(0, 3, 1, 2).flatten(1))
            else:
                encoded.append(part)
        return torch.cat(encoded, -1).reshape(-1, *self.shape)


def obs_encoder(codecs: Codecs) -> Callable[[Tensor], Tensor]:
    """The env's `ObsCodec.write` in torch."""
    codec = codecs.obs
    if isinstance(codec, FlatParts):
        return codec.encode
    dtype = torch.uint8 if codec.dtype == "uint8" else torch.float32
    if isinstance(codec, space.ChannelsFirst):
        return lambda obs: obs.permute(0, 3, 1, 2).to(dtype)
    if isinstance(codec, space.Reshape):
        return lambda obs: obs.reshape(-1, *codec.shape).to(dtype)
    if isinstance(codec, OneHot):
        return _one_hot(codec)
    if isinstance(codec, space.OneHots):
        parts = [_one_hot(part) for part in codec.digits]
        return lambda obs: torch.cat(
            [part(column) for part, column in zip(parts, obs.flatten(1).unbind(1), strict=True)], 1
        )
    return lambda obs: obs.to(dtype)


def _one_hot(codec: OneHot) -> Callable[[Tensor], Tensor]:
    classes = torch.arange(codec.start, codec.start + codec.shape[0])
    return lambda obs: (obs.unsqueeze(-1) == classes).to(torch.float32)


def action_decoder(codecs: Codecs) -> Callable[[Tensor], Tensor]:
    """The env's `ActionCodec.decode` in torch."""
    codec = codecs.action
    match codec:
        case space.DiscreteAction():
            return lambda action: action + codec.start
        case space.MultiDiscreteAction():
            starts = torch.from_numpy(np.asarray(codec.starts, np.int64))
            return lambda action: action + starts
        case space.MultiBinaryAction():
            return lambda action: action.to(torch.int8).reshape(-1, *codec.env_shape)
        case space.BoxAction():
            low, high, center, half_width = (
                torch.from_numpy(np.array(edge, codec.dtype))
                for edge in (codec.low, codec.high, codec.center, codec.half_width)
            )

            def decode(action: Tensor) -> Tensor:
                scaled = action.to(low.dtype).reshape(-1, *low.shape) * half_width + center
                return torch.minimum(torch.maximum(scaled, low), high)

            return decode
    raise ExportError(f"env.name: no way to export actions of {type(codec).__name__}.")


def sample_observations(agent: Agent, env: VectorEnv, codecs: Codecs) -> np.ndarray:
    """Observations in the env's format: recorded while the agent acts, then random ones."""
    rows = [on_host(env.reset()).copy()]
    for _ in range(RECORDED_STEPS):
        step = env.step(agent.env_action(agent.act(rows[-1], explore=False)))
        rows.append(on_host(step.obs).copy())
    recorded = np.concatenate(rows)
    if isinstance(codecs.obs, FlatParts):  # random bytes would be no numbers
        recorded = codecs.obs.read(recorded)
    rng = np.random.default_rng(0)
    shape = (RANDOM_ROWS, *recorded.shape[1:])
    if recorded.dtype == np.uint8:
        noise: np.ndarray = rng.integers(256, size=shape, dtype=np.uint8)
    else:  # more extreme than any recorded, so that clipping and saturated units are tested
        spread = 3 * recorded.std(0) + 0.1
        noise = (recorded.mean(0) + spread * rng.standard_normal(shape)).astype(np.float32)
    sampled = np.concatenate([recorded, noise])
    return (
        sampled
        if isinstance(codecs.obs, FlatParts)
        else np.ascontiguousarray(codecs.obs.read(sampled))
    )


def live_actions(agent: Agent, codecs: Codecs, obs: np.ndarray) -> np.ndarray:
    """The agent's actions in the env's format."""
    seen = np.zeros((len(obs), *codecs.obs.shape), codecs.obs.dtype)
    codecs.obs.write(obs, seen)
    return codecs.action.decode(on_host(agent.env_action(agent.act(seen, explore=False))))


def check_actions(policy: NumpyFunction, obs: np.ndarray, expected: np.ndarray, path: Path) -> None:
    """Raise unless the policy gives the expected actions, for a batch and for a single row."""
    for rows in (slice(None), slice(0, 1)):
        found, wanted = policy(obs[rows]), expected[rows]
        if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            ours, theirs = (f"{list(a.shape)} of {a.dtype}" for a in (wanted, found))
            fault = f"its actions are {theirs}, the agent's {ours}"
        elif not _agree(found, wanted):
            differing = sum(not _agree(*pair) for pair in zip(found, wanted, strict=True))
            fault = f"it acts unlike the agent on {differing} of {len(wanted)} rows"
        else:
            continue
        raise ExportError(f"{path}: not written: {fault}. Try another --format, and report this.")


def _agree(found: np.ndarray, wanted: np.ndarray) -> bool:
    if np.issubdtype(wanted.dtype, np.integer):
        return np.array_equal(found, wanted)
    return np.allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE / 10)


def _write_torch_export(policy: nn.Module, obs: Tensor, path: Path) -> None:
    program = torch.export.export(policy, (obs,), dynamic_shapes=({0: _batch()},))
    torch.export.save(program, path)


def _read_torch_export(path: Path) -> NumpyFunction:
    return _on_arrays(torch.export.load(path).module())


def _write_torchscript(policy: nn.Module, obs: Tensor, path: Path) -> None:
    with torch.no_grad():
        script = torch.jit.trace(policy, obs)  # type: ignore[no-untyped-call]
        torch.jit.save(script, path)


def _read_torchscript(path: Path) -> NumpyFunction:
    return _on_arrays(torch.jit.load(path))  # type: ignore[no-untyped-call]


def _on_arrays(module: Callable[[Tensor], Tensor]) -> NumpyFunction:
    return lambda obs: module(torch.from_numpy(obs)).numpy()


def _write_onnx(policy: nn.Module, obs: Tensor, path: Path) -> None:
    # It warns of every operator of torchvision that it could export.
    registration = "torch.onnx._internal.exporter._registration"
    logging.getLogger(registration).setLevel(logging.ERROR)
    program = torch.onnx.export(
        policy,
        (obs,),
        input_names=["obs"],
        output_names=["action"],
        dynamic_shapes=({0: _batch()},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.save(path, external_data=False)


def _read_onnx(path: Path) -> NumpyFunction:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda obs: cast(np.ndarray, session.run(None, {"obs": obs})[0])


def _batch() -> torch.export.Dim:
    return torch.export.Dim("batch", min=1)


_FORMATS: dict[Format, tuple[Write, Callable[[Path], NumpyFunction]]] = {
    "torch-export": (_write_torch_export, _read_torch_export),
    "torchscript": (_write_torchscript, _read_torchscript),
    "onnx": (_write_onnx, _read_onnx),
}
