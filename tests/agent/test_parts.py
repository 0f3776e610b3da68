"""Observations of several parts: how rows hold them, how nets read them, and that both are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.agent import make_agent
from slm_lab.agent.memory.replay import FrameReplay
from slm_lab.agent.net.mlp import MLPNet
from slm_lab.agent.net.rows import PartReader, RowNet
from slm_lab.agent.parts import FloatRows
from slm_lab.env.make import make_env
from slm_lab.env.space import obs_codec
from slm_lab.spec import SpecError
from slm_lab.training.loop import evaluate, play
from slm_lab.types import ObsPart, Spaces
from tests import parts
from tests.parts import SIGNS, STEER

NET: dict[str, Any] = {
    "type": "MultiInputNet",
    "conv_hid_layers": [[8, 8, 8]],
    "fc_hid_layers": [16],
    "vector_hid_layers": [16],
    "hid_layers": [64],
    "optim_spec": {"name": "Adam", "lr": 0.003},
}
EVERY = ["VanillaDQN", "DQN", "DoubleDQN", "SARSA", "Reinforce", "ActorCritic", "PPO", "SIL"]
EVERY += ["PPOSIL", "SoftActorCritic", "CrossQ", "Random"]
CONTINUOUS = ["Reinforce", "ActorCritic", "PPO", "SoftActorCritic", "CrossQ", "TD3"]
SEEN = spaces.Dict(
    camera=spaces.Box(0, 255, (4, 5, 3), np.uint8),
    inner=spaces.Dict(a=spaces.Box(-9, 9, (2,), np.float32), b=spaces.Discrete(3)),
    pair=spaces.Tuple((spaces.MultiBinary(2), spaces.Box(0, 255, (3, 3), np.uint8))),
)


@pytest.fixture(autouse=True)
def _envs():
    with parts.registered():
        yield


def keys_of(name: str, **env: Any) -> dict[str, Any]:
    shown = {f"env.{key}": value for key, value in env.items()}
    return {"env.name": name, "env.num_envs": 2, "env.max_frame": 400, "agent.net": NET} | shown


def encoded(space, obs, mask=0):
    codec = obs_codec(space, mask)
    row = np.zeros(codec.shape, codec.dtype)
    codec.write(obs, row)
    return codec, row


# Rows


def test_images_lie_in_a_row_as_bytes_and_vectors_as_the_bytes_of_their_numbers():
    SEEN.seed(0)
    obs = SEEN.sample()
    codec, row = encoded(SEEN, obs)
    assert (codec.dtype, codec.shape) == ("uint8", (60 + 4 * (2 + 3 + 2) + 9,))
    assert [part.name for part in codec.parts] == [
        "camera",
        "inner.a",
        "inner.b",
        "pair.0",
        "pair.1",
    ]
    assert [part.shape for part in codec.parts] == [(3, 4, 5), (2,), (3,), (2,), (1, 3, 3)]
    spaces_ = Spaces(codec.shape, codec.dtype, "discrete", (2,), parts=codec.parts)
    floats = FloatRows(spaces_)(torch.from_numpy(row[None])).numpy()[0]
    expected = [
        np.moveaxis(obs["camera"], -1, 0).ravel(),
        obs["inner"]["a"],
        np.eye(3)[obs["inner"]["b"]],
        obs["pair"][0],
        obs["pair"][1].ravel(),
    ]
    np.testing.assert_array_equal(floats, np.concatenate(expected).astype(np.float32))


def test_reading_a_row_gives_back_what_was_written():
    SEEN.seed(1)
    obs = SEEN.sample()
    codec, row = encoded(SEEN, obs)
    found = codec.read(row[None])
    np.testing.assert_array_equal(found["camera"][0], obs["camera"])
    np.testing.assert_array_equal(found["inner"]["a"][0], obs["inner"]["a"])
    assert found["inner"]["b"][0] == obs["inner"]["b"]
    np.testing.assert_array_equal(found["pair"][1][0], obs["pair"][1])


def test_parts_without_an_image_are_the_float_vector_that_they_were():
    space = spaces.Dict(a=spaces.Box(-1, 1, (2,), np.float32), b=spaces.Discrete(3))
    codec, row = encoded(space, {"a": np.array([0.5, -0.5]), "b": 1})
    assert codec.dtype == "float32"
    assert row.tolist() == [0.5, -0.5, 0, 1, 0]


def test_an_mlp_on_vectors_has_nothing_around_it(make_spec):
    vectors = (ObsPart("a", (2,), "float32"), ObsPart("b", (3,), "float32"))
    agent = make_agent(
        make_spec("PPO"), Spaces((5,), "float32", "discrete", (2,), parts=vectors), seed=0
    )
    assert type(agent.algorithm.modules["net"]) is MLPNet


@pytest.mark.parametrize("op", ["stack", "concat"])
def test_a_net_sees_each_part_of_all_stacked_frames(op, make_spec):
    spec = make_spec("DQN", keys_of(SIGNS, frame_stack=3, frame_op=op))
    env: Any = make_env(spec.env, seed=0)
    frames = [env.reset()[0].copy()]
    shown = [env._env.obs[0].copy()]
    for _ in range(2):
        frames.append(env.step(env.sample_action()).obs[0].copy())
        shown.append(env._env.obs[0].copy())
    row = FloatRows(env.spaces)(torch.from_numpy(frames[-1][None]))
    seen = PartReader(env.spaces)(row)
    assert {name: tuple(part.shape) for name, part in seen.items()} == {
        "camera": (1, 3, 32, 32),
        "sensors.goal": (1, 6),
    }
    for i, single in enumerate(shown):
        found = env._env.codecs.obs.read(single[None])
        np.testing.assert_array_equal(seen["camera"][0, i], found["camera"][0, ..., 0])
        np.testing.assert_array_equal(
            seen["sensors.goal"][0, 2 * i : 2 * i + 2], found["sensors"]["goal"][0]
        )


def test_a_replay_stores_each_image_once(make_spec, start):
    loop = start(make_spec("DQN", keys_of(SIGNS)))
    memory = loop.agent.experience._replay
    assert isinstance(memory, FrameReplay)
    assert memory._frames.dtype == torch.uint8
    loop.run(lambda: None, 400, lambda: False, until=40)
    batch = memory.sample(1, 40)
    assert batch.obs.shape == (32, 32 * 32 + 8)


def test_vectors_are_normalised_and_images_and_masks_are_not(make_spec, train):
    loop = train(make_spec("PPO", keys_of(SIGNS, normalize_obs=True, masks=True)), 100)
    raw = torch.from_numpy(loop.env.obs)
    plain = FloatRows(loop.env.spaces)(raw)
    seen = loop.agent._preprocessor.obs(raw)
    is_vector = torch.zeros(plain.shape[1], dtype=torch.bool)
    is_vector[1024:1026] = True
    assert torch.equal(seen[:, ~is_vector], plain[:, ~is_vector])
    assert not torch.equal(seen[:, is_vector], plain[:, is_vector])
    assert loop.agent.statistics()["obs_normalizer"]["mean"].shape == (2,)


# Nets


@pytest.mark.parametrize("net", ["MLPNet", "ConvNet", "RecurrentNet"])
def test_a_net_for_one_array_is_refused_with_the_fix(net, make_spec):
    spec = make_spec("PPO", keys_of(SIGNS) | {"agent.net": {"type": net}})
    with pytest.raises(SpecError, match=r"agent\.net\.type: .*camera \[1, 32, 32\].*MultiInputNet"):
        make_agent(spec, make_env(spec.env, seed=0).spaces, seed=0)


def test_one_image_alone_is_read_by_a_conv_net(make_spec, train):
    net = {"type": "ConvNet", "conv_hid_layers": [[2, 8, 8]], "fc_hid_layers": [8]}
    keys = keys_of(SIGNS) | {"env.kwargs.hidden": "sensors", "agent.net": net}
    loop = train(make_spec("PPO", keys), 100)
    assert np.isfinite(evaluate(loop.agent, loop.env))


def test_a_plain_observation_can_be_read_by_the_same_net(make_spec, train):
    loop = train(make_spec("PPO", {"agent.net": NET, "env.name": "CartPole-v1"}), 100)
    assert isinstance(loop.agent.algorithm.modules["net"], RowNet)


@pytest.mark.parametrize("algorithm", EVERY)
def test_every_algorithm_learns_from_parts(algorithm, make_spec, train):
    loop = train(make_spec(algorithm, keys_of(SIGNS)), 120)
    assert loop.clock.updates > 0
    assert np.isfinite(evaluate(loop.agent, loop.env))


@pytest.mark.parametrize("algorithm", CONTINUOUS)
def test_critics_that_read_the_action_join_it(algorithm, make_spec, train):
    loop = train(make_spec(algorithm, keys_of(STEER)), 120)
    assert np.isfinite(evaluate(loop.agent, loop.env))
    if algorithm in ("SoftActorCritic", "CrossQ", "TD3"):
        critic: Any = loop.agent.algorithm.modules["q1_net"]
        obs = torch.zeros(1, 1026)
        values = [critic(torch.cat([obs, torch.tensor([[a]])], -1))[0] for a in (-1.0, 1.0)]
        assert values[0] != values[1]


def test_masks_and_parts_go_together(make_spec, train):
    loop = train(make_spec("DQN", keys_of(SIGNS, masks=True)), 120)
    rows = loop.env.reset()
    for _ in range(20):
        action = loop.agent.act(rows, frame=0)
        assert (action < 2).all()
        rows = loop.env.step(action).obs


def arc_of(inputs: list[str]) -> dict[str, Any]:
    eye = [
        {"LazyConv2d": {"out_channels": 4, "kernel_size": 8, "stride": 8}},
        {"ReLU": None},
        {"Flatten": None},
        {"LazyLinear": {"out_features": 4}},
    ]
    modules = {"eye": {"Sequential": eye}, "both": {"Bilinear": [4, 2, 8]}}
    graph = {"eye": [inputs[0]], "both": ["eye", inputs[-1]]}
    arc = {"modules": modules, "graph": {"input": inputs, "modules": graph, "output": "both"}}
    return {"type": "TorchArcNet", "arc": arc, "normalize": True}


def test_the_graph_of_an_arc_names_the_parts_that_it_reads(make_spec, train):
    net = arc_of(["camera", "sensors.goal"])
    loop = train(make_spec("PPO", keys_of(SIGNS) | {"agent.net": net}), 100)
    assert np.isfinite(evaluate(loop.agent, loop.env))


def test_a_graph_of_other_parts_is_refused_by_key(make_spec):
    spec = make_spec("PPO", keys_of(SIGNS) | {"agent.net": arc_of(["camera", "gaol"])})
    with pytest.raises(SpecError, match=r"arc\.graph\.input: .*gaol.*expected .*sensors\.goal"):
        make_agent(spec, make_env(spec.env, seed=0).spaces, seed=0)


# Both parts are needed, and used


@pytest.mark.slow
@pytest.mark.long_learning
@pytest.mark.parametrize(
    ("algorithm", "name", "frames"),
    [("PPO", SIGNS, 20_000), ("DQN", SIGNS, 2500), ("SoftActorCritic", STEER, 1500)],
)
def test_what_takes_both_parts_is_solved_with_both_and_not_with_one(
    algorithm, name, frames, make_spec, train
):
    def score(hidden: str) -> float:
        keys = keys_of(name) | {"env.num_envs": 8, "env.max_frame": frames}
        keys |= {"env.kwargs.hidden": hidden} if hidden else {}
        loop = train(make_spec(algorithm, keys | {"agent.algorithm.gamma": 0.0}), frames)
        return float(np.mean(play(loop.agent, loop.env, 64).returns))

    assert score("") > 7.2  # of 8
    assert score("camera") < 5
    assert score("sensors") < 5
