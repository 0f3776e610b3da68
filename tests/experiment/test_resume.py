"""Stopped and resumed, a session gives what it would have given in one go, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.analysis.tables import drop_clock, read_session
from slm_lab.experiment.checkpoint import read_checkpoint
from slm_lab.experiment.layout import RunLayout
from slm_lab.experiment.options import RunOptions
from slm_lab.experiment.session import Session
from slm_lab.spec import Spec, spec_from_dict

LIMIT = 10**9
FRAMES = 320

DECAY = {"name": "linear_decay", "start_val": 0.3, "end_val": 0.01, "end_step": FRAMES}
TO_ZERO = {"name": "LinearToZero", "frame": FRAMES}
NET: dict[str, Any] = {
    "type": "MLPNet",
    "shared": False,
    "hid_layers": [8],
    "hid_layers_activation": "tanh",
    "optim_spec": {"name": "Adam", "lr": 0.01},
    "lr_scheduler_spec": TO_ZERO,
}
POLYAK = {"update_type": "polyak", "polyak_coef": 0.05}
COPIED = {"update_type": "replace", "update_frequency": 100}
ROLLOUT: dict[str, Any] = {"name": "OnPolicyBatchReplay"}
EPISODES: dict[str, Any] = {"name": "OnPolicyReplay"}
PAST = ROLLOUT | {"batch_size": 8, "max_size": 100}
REPLAY: dict[str, Any] = {"name": "Replay", "batch_size": 8, "max_size": 150}  # wraps around
PRIORITIES = REPLAY | {"name": "PrioritizedReplay", "alpha": 0.6, "epsilon": 1e-3}
PPO: dict[str, Any] = {
    "name": "PPO",
    "gamma": 0.99,
    "lam": 0.9,
    "clip_eps_spec": DECAY,
    "entropy_coef_spec": DECAY,
    "time_horizon": 12,
    "minibatch_size": 8,
    "training_epoch": 2,
}
A2C: dict[str, Any] = {
    "name": "ActorCritic",
    "gamma": 0.99,
    "lam": 0.9,
    "training_frequency": 10,
    "entropy_coef_spec": DECAY,
}
IMITATION = {"sil_policy_loss_coef": 0.5, "sil_val_loss_coef": 0.1, "training_iter": 2}
Q: dict[str, Any] = {
    "gamma": 0.99,
    "action_pdtype": "Argmax",
    "action_policy": "epsilon_greedy",
    "explore_var_spec": DECAY,
}
OFF_POLICY = {"training_frequency": 4, "training_start_step": 40, "training_iter": 2}
BATCH_NORM = {k: v for k, v in NET.items() if not k.startswith("hid_layers")} | {
    "type": "TorchArcNet",
    "arc": {
        "modules": {
            "body": {
                "Sequential": [
                    {"LazyLinear": {"out_features": 8}},
                    {"LazyBatchRenorm1d": {"momentum": 0.1, "warmup_steps": 20}},
                    {"ReLU": {}},
                ]
            }
        },
        "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
    },
}

# name -> algorithm, memory, net
ALGORITHMS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "Random": ({"name": "Random"}, ROLLOUT, NET),
    "REINFORCE": (
        {"name": "Reinforce", "gamma": 0.99, "training_frequency": 3, "entropy_coef_spec": DECAY},
        EPISODES,
        NET,
    ),
    "SARSA": (Q | {"name": "SARSA", "training_frequency": 10}, ROLLOUT, NET),
    "A2C": (A2C | {"normalize_v_targets": True}, ROLLOUT, NET),
    "PPO": (PPO, ROLLOUT, NET),
    "SIL": (A2C | IMITATION | {"name": "SIL"}, PAST | {"sil_replay_name": "Replay"}, NET),
    "PPO-SIL": (
        PPO | IMITATION | {"name": "PPOSIL"},
        PAST | {"sil_replay_name": "PrioritizedReplay", "alpha": 0.6, "epsilon": 1e-3},
        NET,
    ),
    "DQN": (
        Q | OFF_POLICY | {"name": "DQN", "training_batch_iter": 1},
        REPLAY | {"use_cer": True},
        NET | COPIED,
    ),
    "DDQN+PER": (
        Q | OFF_POLICY | {"name": "DoubleDQN", "training_batch_iter": 1, "n_step": 3},
        PRIORITIES,
        NET | POLYAK,
    ),
    "SAC": (
        OFF_POLICY | {"name": "SoftActorCritic", "gamma": 0.99, "policy_delay": 2},
        REPLAY,
        NET | POLYAK,
    ),
    "CrossQ": (OFF_POLICY | {"name": "CrossQ", "gamma": 0.99}, REPLAY, BATCH_NORM),
}
DISCRETE_ONLY = ("SARSA", "DQN", "DDQN+PER")

# env -> is discrete
ENVS = {
    "CartPole-v1": True,
    "Pendulum-v1": False,
    "LunarLander-v3": True,
    "HalfCheetah-v5": False,
    "probe/RepeatPrevious-v0": True,
}


def make(algorithm: str, env: str = "CartPole-v1", **values: Any) -> Spec:
    learner, memory, net = copy.deepcopy(ALGORITHMS[algorithm])
    tree = {
        "agent": {"name": "Tiny", "algorithm": learner, "memory": memory, "net": net},
        "env": {"name": env, "num_envs": 2, "max_frame": FRAMES, "max_t": 60},
        "meta": {"log_frequency": 50, "compile": "off", "random_seed": 4},
    }
    spec = spec_from_dict(tree, "tiny")
    return spec.with_values({key.replace("__", "."): value for key, value in values.items()})


def session(spec: Spec, layout: RunLayout, *, resume: bool = False) -> Session:
    return Session(
        spec,
        layout,
        0,
        0,
        RunOptions(mode="train", resume=resume),
        report=lambda _: None,
        should_stop=lambda: False,
    )


def in_one_go(spec: Spec, folder: Path) -> RunLayout:
    layout = RunLayout.create(spec.name, "whole", folder)
    assert session(spec, layout).run()
    return layout


def in_pieces(spec: Spec, folder: Path, *stops: int) -> RunLayout:
    layout = RunLayout.create(spec.name, "pieces", folder)
    for i, stop in enumerate(stops):
        piece = session(spec, layout, resume=i > 0)
        assert not piece.advance(stop)
        piece.close()
    assert session(spec, layout, resume=True).run()
    return layout


def final_state(layout: RunLayout) -> dict[str, Any]:
    """Everything that the agent is at the end, and at its best."""
    manifest, state = read_checkpoint(layout.checkpoint_dir(0, 0) / "last", max_bytes=LIMIT)
    assert manifest.finished
    return {"counters": dict(manifest.counters), **state}


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, Mapping):
        return {k: v for key in tree for k, v in leaves(tree[key], f"{path}/{key}").items()}
    if isinstance(tree, list):
        return {k: v for i, x in enumerate(tree) for k, v in leaves(x, f"{path}/{i}").items()}
    return {path: tree}


def assert_same_run(ours: RunLayout, theirs: RunLayout) -> None:
    mine, other = leaves(final_state(ours)), leaves(final_state(theirs))
    assert mine.keys() == other.keys()
    for path, value in mine.items():
        same = (
            torch.equal(value, other[path]) if isinstance(value, Tensor) else value == other[path]
        )
        assert same, path
    for mode in ("train", "eval"):
        tables = [read_session(layout.session_csv(0, 0, mode)) for layout in (ours, theirs)]
        texts = [drop_clock(table).to_csv() for table in tables]
        assert texts[0] == texts[1]
        assert len(tables[0])
    models = [sorted((layout.predir / "model").iterdir()) for layout in (ours, theirs)]
    assert [path.name for path in models[0]] == [path.name for path in models[1]]
    for mine_path, other_path in zip(*models, strict=True):
        one, two = (torch.load(path, weights_only=True) for path in (mine_path, other_path))
        assert leaves(one).keys() == leaves(two).keys()
        assert all(torch.equal(one[key], two[key]) for key in one), mine_path.name


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_resumed_session_is_the_uninterrupted_one(tmp_path, algorithm):
    spec = make(algorithm)
    assert_same_run(in_pieces(spec, tmp_path, 146), in_one_go(spec, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        (algorithm, env)
        for algorithm in ALGORITHMS
        for env, is_discrete in ENVS.items()
        if env != "CartPole-v1" and (is_discrete or algorithm not in DISCRETE_ONLY)
    ],
)
def test_a_resumed_session_is_the_uninterrupted_one_on_other_envs(tmp_path, algorithm, env):
    spec = make(algorithm, env)
    assert_same_run(in_pieces(spec, tmp_path, 74, 190), in_one_go(spec, tmp_path))


@pytest.mark.parametrize("algorithm", ["PPO", "SAC", "REINFORCE"])
def test_statistics_frame_stacks_and_evaluations_go_on_too(tmp_path, algorithm):
    spec = make(
        algorithm,
        env__normalize_obs=True,
        env__normalize_reward=True,
        env__frame_stack=2,
        env__frame_op="concat",
        meta__rigorous_eval=1,
        meta__eval_frequency=100,
    )
    assert_same_run(in_pieces(spec, tmp_path, 30, 146, 148), in_one_go(spec, tmp_path))


def test_a_session_interrupted_after_every_few_frames_is_the_same(tmp_path):
    spec = make("DDQN+PER")
    stops = range(10, FRAMES, 30)
    assert_same_run(in_pieces(spec, tmp_path, *stops), in_one_go(spec, tmp_path))


def test_the_cut_is_nowhere_special(tmp_path):
    """At frame 0, at a row of the curve, right after an update, one step before the end."""
    spec = make("PPO")
    whole = in_one_go(spec, tmp_path)
    for stop in (0, 50, 24, FRAMES - 2):
        assert_same_run(in_pieces(spec, tmp_path / str(stop), stop), whole)


# What cannot be restored


def test_an_env_that_cannot_be_restored_begins_new_episodes_and_joins_nothing(tmp_path):
    pytest.importorskip("envpool")
    spec = make("PPO", env__backend="envpool")
    layout = RunLayout.create(spec.name, "pool", tmp_path)
    first = session(spec, layout)
    assert not first.advance(6)  # three steps of two envs
    state = copy.deepcopy(first.state_dict())
    first.close()
    second = session(spec, layout, resume=True)
    resumed = second.state_dict()["experience"]["memory"]
    assert state["experience"]["memory"]["rows"]["truncated"].any().item() is False
    assert resumed["rows"]["truncated"][-1].tolist() == [True, True]
    np.testing.assert_array_equal(resumed["final"]["obs"].numpy(), state["loop"]["obs"])
    assert not np.array_equal(second.state_dict()["loop"]["obs"], state["loop"]["obs"])
    assert second.run()
    frames = read_session(layout.session_csv(0, 0, "train"))["frame"].tolist()
    assert frames == [50, 100, 150, 200, 250, 300, 320]


def test_the_rows_of_a_replay_are_cut_for_good(tmp_path):
    """The newest rows were on disk already: a second resume must see the cut too."""
    pytest.importorskip("envpool")
    spec = make("DDQN+PER", env__backend="envpool")
    layout = RunLayout.create(spec.name, "pool", tmp_path)
    for stop in (20, 40, 60, 80):  # 10, 20, 30, 40 rows
        piece = session(spec, layout, resume=stop > 20)
        assert not piece.advance(stop)
        piece.close()
    ring = session(spec, layout, resume=True).state_dict()["experience"]["replay"]["ring"]
    assert ring.columns["ended"][[9, 19, 29, 39]].all()
