"""One file, obs in and action out, that acts as the agent does or is not written."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.parts import FloatRows
from slm_lab.env.space import Parts, obs_codec
from slm_lab.playback import export as module
from slm_lab.playback.export import ExportError, Policy, check_actions, export_policy
from slm_lab.playback.saved_agent import load_agent
from slm_lab.runs.find import open_run
from slm_lab.spec.algorithm import ALGORITHMS
from slm_lab.types import Spaces
from tests import masks, parts

HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
needs_onnx = pytest.mark.skipif(
    not HAS_ONNX, reason="onnx, onnxscript or onnxruntime is missing (extra `onnx`)"
)
EVERY_ALGORITHM = ["PPO", "ActorCritic", "Reinforce", "SIL", "PPOSIL"]
EVERY_ALGORITHM += ["SARSA", "DQN", "SoftActorCritic", "CrossQ", "TD3", "TQC"]
ENVS = {"CartPole-v1": "discrete", "Pendulum-v1": "continuous"}
ARC = {
    "modules": {
        "body": {
            "Sequential": [{"LazyLinear": {"out_features": 4}}, {"LazyBatchRenorm1d": {}}, "Tanh"]
        }
    },
    "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
}
OPTIMIZER = {"optim_spec": {"name": "Adam", "lr": 0.01}}
NETS: dict[str, dict[str, Any]] = {
    "TorchArcNet": {"type": "TorchArcNet", "arc": ARC, "hid_layers_activation": "tanh"},
    "batch norm": {
        "type": "MLPNet",
        "hid_layers": [4, 4],
        "hid_layers_activation": "relu",
        "batch_norm": True,
    },
    "ConvNet": {
        "type": "ConvNet",
        "conv_hid_layers": [[4, 3, 2, 0, 1], [4, 3, 1, 0, 1]],
        "fc_hid_layers": [8],
        "hid_layers_activation": "relu",
        "normalize": True,
    },
    "DuelingMLPNet": {
        "type": "DuelingMLPNet",
        "hid_layers": [4],
        "hid_layers_activation": "relu",
    },
}


class AnySpaces(gym.Env[Any, Any]):
    """Observations and actions drawn from whatever spaces it is given; episodes of five steps."""

    def __init__(self, obs: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = obs, action
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.t += 1
        return self.observation_space.sample(), float(self.t), self.t == 5, False, {}


VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (12, 10, 3), np.uint8)
SPACES: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "Box": (VECTOR, spaces.Box(np.array([-1, 0], np.float32), np.array([3, 10], np.float32))),
    "half bounded": (VECTOR, spaces.Box(0, np.inf, (2,), np.float32)),
    "shaped box": (VECTOR, spaces.Box(-2, 5, (2, 2), np.float64)),
    "grid of numbers": (spaces.Box(-1, 1, (2, 3), np.float64), spaces.Discrete(3, start=-1)),
    "integers": (spaces.Discrete(6, start=2), spaces.Discrete(2, start=5)),
    "several integers": (spaces.MultiDiscrete([3, 4]), spaces.MultiDiscrete([2, 3])),
    "bits": (spaces.MultiBinary((2, 3)), spaces.MultiBinary((2, 2))),
    "mixture": (spaces.Dict(a=spaces.Discrete(3), b=VECTOR), spaces.Discrete(2)),
    "image": (IMAGE, spaces.Discrete(3)),
    "grey image": (spaces.Box(0, 255, (12, 10), np.uint8), spaces.Discrete(3)),
}


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    names = {kind: f"export/{kind.replace(' ', '')}-v0" for kind in SPACES}
    for kind, (obs, action) in SPACES.items():
        entry_point = f"{__name__}:AnySpaces"
        gym.register(names[kind], entry_point, kwargs={"obs": obs, "action": action})
    yield
    for name in names.values():
        del gym.registry[name]


def env_of(kind: str) -> str:
    return f"export/{kind.replace(' ', '')}-v0"


@pytest.fixture
def export(train_folder) -> Callable[..., Path]:
    """Train an agent and export it; verified on the way, as every export is."""

    def trained(spec, format="torchscript"):
        return export_policy(open_run(train_folder(spec)), 0, format=format)

    return trained


# What can be exported


@pytest.mark.parametrize(
    ("env", "algorithm"),
    [
        (env, algorithm)
        for env, kind in ENVS.items()
        for algorithm in EVERY_ALGORITHM
        if kind in ALGORITHMS[algorithm].actions
    ],
)
def test_every_algorithm_for_discrete_and_continuous_actions(make_spec, export, algorithm, env):
    export(make_spec(algorithm, env__name=env, env__normalize_obs=True))


@pytest.mark.parametrize("kind", SPACES)
def test_every_kind_of_space(make_spec, export, kind):
    net = NETS["ConvNet"] | {"shared": False} if "image" in kind else {}
    changes = {"agent__net": {**net, **OPTIMIZER}} if net else {}
    path = export(make_spec(env__name=env_of(kind), **changes))
    actions = act(path, example(kind))
    space = SPACES[kind][1]
    assert len(actions) == 2
    assert all(space.contains(action) for action in actions)


def example(kind: str) -> np.ndarray:
    """Two observations exactly as the env gives them, the parts of a mixture flattened."""
    space = SPACES[kind][0]
    space.seed(1)
    given = [space.sample() for _ in range(2)]
    if kind == "mixture":
        given = [spaces.flatten(space, obs) for obs in given]
    batch = np.stack(given)
    return batch.astype(np.float32) if batch.dtype.kind == "f" else batch


def act(path: Path, obs: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch asks not to use TorchScript any more
        policy = torch.jit.load(path)
    actions: np.ndarray = policy(torch.from_numpy(obs)).numpy()
    return actions


@pytest.mark.parametrize("net", ["TorchArcNet", "batch norm"])
def test_every_net_of_vectors(make_spec, export, net):
    export(make_spec("DQN", env__name="CartPole-v1", agent__net=NETS[net] | OPTIMIZER))


def test_a_dueling_net(make_spec, export):
    net = NETS["DuelingMLPNet"] | OPTIMIZER
    export(make_spec("DQN", env__name="CartPole-v1", agent__net=net))


def test_a_noisy_net_that_says_how_returns_are_distributed(make_spec, export):
    net = {"type": "DuelingMLPNet", "noisy": True} | OPTIMIZER
    path = export(make_spec("Rainbow", env__name="CartPole-v1", agent__net=net))
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert len({tuple(act(path, obs).tolist()) for _ in range(5)}) == 1


def test_a_stack_of_frames_is_given_stacked(make_spec, export):
    path = export(make_spec(env__name="CartPole-v1", env__frame_stack=3, env__frame_op="concat"))
    assert act(path, np.zeros((5, 12), np.float32)).shape == (5,)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["torch-export", pytest.param("onnx", marks=needs_onnx)])
@pytest.mark.parametrize(
    "case", ["pendulum", "image", "TorchArcNet", "integers", "SoftActorCritic"]
)
def test_the_other_formats_hold_the_same(make_spec, pendulum, export, format, case):
    specs = {
        "pendulum": lambda: pendulum,
        "image": lambda: make_spec(
            env__name=env_of("image"), agent__net=NETS["ConvNet"] | {"shared": False} | OPTIMIZER
        ),
        "TorchArcNet": lambda: make_spec(
            "DQN", env__name="CartPole-v1", agent__net=NETS["TorchArcNet"] | OPTIMIZER
        ),
        "integers": lambda: make_spec(env__name=env_of("integers")),
        "SoftActorCritic": lambda: make_spec("SoftActorCritic", env__name=env_of("Box")),
    }
    path = export(specs[case](), format)
    assert path.suffix == {"torch-export": ".pt2", "onnx": ".onnx"}[format]


@pytest.mark.parametrize("algorithm", ["DQN", "Rainbow"])
def test_a_policy_with_a_mask_reads_it_behind_the_values(make_spec, export, algorithm):
    net = {"type": "MLPNet", "hid_layers": [8]} | OPTIMIZER
    with masks.registered():
        path = export(make_spec(algorithm, env__name=masks.MINES, agent__net=net))
    rows = np.tile(np.array([0.1, 0.5, 0.9, 0.3], np.float32), (4, 1))
    actions = act(path, np.concatenate([rows, np.eye(4, dtype=np.float32)], 1))
    assert actions.tolist() == [0, 1, 2, 3]


def test_a_policy_of_parts_reads_them_flattened(make_spec, train_folder):
    net = {
        "type": "MultiInputNet",
        "conv_hid_layers": [[2, 4, 4]],
        "fc_hid_layers": [4],
        "normalize": True,
        "optim_spec": OPTIMIZER["optim_spec"],
    }
    with parts.registered():
        folder = train_folder(
            make_spec(env__name=parts.SIGNS, agent__net=net, env__normalize_obs=True)
        )
        path = export_policy(open_run(folder), 0, format="torchscript")
        agent, ours = load_agent(folder, seed=1)
        env = gym.make(parts.SIGNS)
    obs, _ = env.reset(seed=3)
    row = np.zeros((1, *ours.spaces.obs_shape), np.uint8)
    ours.codecs.obs.write(obs, row[0])
    flat = np.asarray(spaces.flatten(env.observation_space, obs), np.float32)[None]
    assert act(path, flat).tolist() == np.asarray(agent.act(row, explore=False)).tolist()


@pytest.mark.parametrize(("op", "shape"), [("stack", (2, 1029)), ("concat", (2058,))])
def test_a_stack_of_parts_is_a_flat_row_for_each_frame(make_spec, train_folder, op, shape):
    """An image, a vector and a mask: 1024, 2 and 3 numbers."""
    net = {"type": "MultiInputNet", "conv_hid_layers": [[2, 4, 4]]} | OPTIMIZER
    keys = {"env__frame_stack": 2, "env__frame_op": op, "env__masks": True}
    with parts.registered():
        folder = train_folder(make_spec("DQN", env__name=parts.SIGNS, agent__net=net, **keys))
        path = export_policy(open_run(folder), 0, format="torchscript")
        agent, env = load_agent(folder, seed=1)
        ours: Any = env
        rows = [ours.reset().copy()]
        rows.append(ours.step(agent.env_action(agent.act(rows[0], explore=False))).obs.copy())
    for row in rows:
        seen = []
        for frame in row.reshape(2, 1, -1):
            shown = ours.codecs.obs.frame.read(frame)
            in_order = shown["camera"], shown["sensors"]["goal"], shown["action_mask"]
            seen += [np.asarray(part, np.float32).ravel() for part in in_order]
        flat = np.concatenate(seen).reshape(1, *shape)
        assert act(path, flat)[0] == agent.act(row[:1], explore=False)[0]


def test_flat_parts_become_the_rows_that_the_agent_reads():
    shown = spaces.Dict(a=spaces.Box(0, 255, (4, 5, 3), np.uint8), b=spaces.Discrete(3), c=VECTOR)
    shown.seed(0)
    obs = shown.sample()
    codec = obs_codec(shown)
    assert isinstance(codec, Parts)
    row = np.zeros((1, *codec.shape), codec.dtype)
    codec.write(obs, row[0])
    flat = module.FlatParts(codec, codec.shape)
    np.testing.assert_array_equal(flat.read(row)[0], spaces.flatten(shown, obs))
    seen = FloatRows(Spaces(codec.shape, codec.dtype, "discrete", (2,), parts=codec.parts))
    encoded = flat.encode(torch.from_numpy(flat.read(row)))
    np.testing.assert_array_equal(encoded, seen(torch.from_numpy(row)))


# What the file does


def test_the_file_drives_a_plain_env_as_the_agent_does(pendulum, train_folder):
    folder = train_folder(pendulum)
    path = export_policy(open_run(folder), 0, format="torchscript")
    agent, ours = load_agent(folder, seed=5)
    obs, plain = ours.reset(), gym.make("Pendulum-v1")
    plain.reset(seed=0)
    seen = np.array(obs[0])
    plain.unwrapped.state = np.array([np.arctan2(seen[1], seen[0]), seen[2]])  # type: ignore[attr-defined]
    for _ in range(19):  # one short of an episode
        obs = ours.step(agent.env_action(agent.act(obs, explore=False))).obs
        seen, *_ = plain.step(act(path, seen[None])[0])
        assert np.allclose(seen, obs[0], atol=1e-3)
    plain.close()


def test_actions_reach_the_edges_of_the_box_and_no_further(pendulum, train_folder):
    agent, env = load_agent(train_folder(pendulum))
    net = agent.algorithm.modules["net"]
    net.load_state_dict({key: 50 * value for key, value in net.state_dict().items()})
    obs = 100 * torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    action = Policy(agent, env.codecs)(obs)
    assert (action.min(), action.max()) == (-2, 2)


def test_the_normaliser_is_inside(pendulum, train_folder):
    folder = train_folder(pendulum)
    obs = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    before = act(export_policy(open_run(folder), 0, format="torchscript"), obs)
    (path,) = folder.glob("model/*ckpt-best_obs_normalizer_model.pt")
    state = torch.load(path, weights_only=True)
    torch.save(state | {"mean": state["mean"] + 3}, path)
    moved = act(export_policy(open_run(folder), 0, format="torchscript"), obs + 3)
    assert not np.array_equal(before, act(path.with_name("tiny_t0_s0_best_policy.ts"), obs))
    assert np.allclose(before, moved, atol=1e-4)


# What is refused


def test_a_file_that_acts_otherwise_is_not_left(pendulum, train_folder, monkeypatch):
    folder = train_folder(pendulum)
    decoder = module.action_decoder
    monkeypatch.setattr(
        module, "action_decoder", lambda codecs: lambda a: decoder(codecs)(a) * 1.01
    )
    with pytest.raises(ExportError, match=r"policy\.ts: not written: it acts unlike the agent on"):
        export_policy(open_run(folder), 0, format="torchscript")
    assert not list(folder.rglob("*policy*"))


def test_an_older_file_survives_a_failed_export(pendulum, train_folder, monkeypatch):
    folder = train_folder(pendulum)
    path = export_policy(open_run(folder), 0, format="torchscript")
    before = path.read_bytes()
    monkeypatch.setattr(module, "action_decoder", lambda codecs: lambda action: action[:, :0])
    with pytest.raises(ExportError, match=r"its actions are \[.*, 0\] of float32, the agent's"):
        export_policy(open_run(folder), 0, format="torchscript")
    assert path.read_bytes() == before


def test_one_wrong_choice_is_enough_to_refuse():
    expected = np.arange(9)
    found = np.where(expected == 4, 5, expected)
    with pytest.raises(ExportError, match="unlike the agent on 1 of 9 rows"):
        check_actions(lambda obs: found[: len(obs)], np.zeros((9, 1)), expected, Path("x"))


def test_random_has_no_policy(make_spec, train_folder):
    with pytest.raises(ExportError, match=r"agent\.algorithm\.name: Random has no policy"):
        export_policy(open_run(train_folder(make_spec("Random"))), 0)


def test_onnx_without_its_packages_names_the_extra(make_spec, train_folder, monkeypatch):
    run = open_run(train_folder(make_spec()))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r"needs onnx, onnxscript, onnxruntime.*slm-lab\[onnx\]"):
        export_policy(run, 0, format="onnx")
