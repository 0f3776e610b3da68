"""Action masks: no forbidden action is taken, hoped for or drawn, whatever the algorithm."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.actor import masked_epsilon_greedy, numpy_policy
from slm_lab.agent.net.mlp import MLPNet
from slm_lab.agent.net.rows import FORBIDDEN, RowNet, allowed_actions, draw_allowed, masked
from slm_lab.spec import SpecError
from slm_lab.training.loop import play
from slm_lab.types import ObsPart, Spaces
from tests import masks
from tests.masks import CHOICES, LENGTH, MINES

DISCRETE = ["SARSA", "VanillaDQN", "DQN", "DoubleDQN", "QRDQN", "C51"]
DISCRETE += ["Rainbow", "SoftActorCritic", "CrossQ"]
ON_POLICY = ["Reinforce", "ActorCritic", "PPO", "SIL", "PPOSIL", "Random"]
MASKED: dict[str, Any] = {"env.name": MINES, "env.num_envs": 3, "env.max_frame": 300}
GRU = {"type": "RecurrentNet", "rnn_hidden_size": 4, "seq_len": 4}
PER = {"agent.memory.name": "PrioritizedReplay", "agent.algorithm.n_step": 3}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Boltzmann": ("DQN", {"agent.algorithm.action_policy": "boltzmann"}),
    "at random": ("DQN", {"agent.algorithm.action_policy": "random"}),
    "n-step and PER": ("DQN", PER),
    "dueling": ("DQN", {"agent.net.type": "DuelingMLPNet"}),
    "noisy": ("DQN", {"agent.net.noisy": True}),
    "noisy QR-DQN": ("QRDQN", {"agent.net.noisy": True, "agent.net.type": "DuelingMLPNet"}),
    "stacked frames": ("DQN", {"env.frame_stack": 3}),
    "concatenated frames": ("PPO", {"env.frame_stack": 3, "env.frame_op": "concat"}),
    "normalised": ("PPO", {"env.normalize_obs": True}),
    "clipped": ("PPO", {"env.clip_obs": 0.2}),
    "shared net": ("PPO", {"agent.net.shared": True}),
    "recurrent PPO": ("PPO", {"agent.net": GRU}),
    "recurrent DQN": ("DQN", {"agent.net": GRU}),
    "recurrent frames": ("PPO", {"agent.net": GRU, "env.frame_stack": 2}),
    "both directions": ("PPO", {"agent.net": GRU | {"bidirectional": True}}),
    "a wide net": ("PPO", {"agent.net.hid_layers": [300]}),
    "a wide Q net": ("DQN", {"agent.net.hid_layers": [300]}),
    "one env": ("DQN", {"env.num_envs": 1}),
    "sometimes masked": ("DQN", {"env.mixed": True}),
    "from a method": ("SoftActorCritic", {"env.source": "method"}),
    "from a key": ("ActorCritic", {"env.source": "dict"}),
    "whole episodes": (
        "Reinforce",
        {"agent.memory.name": "OnPolicyReplay", "agent.algorithm.training_frequency": 2},
    ),
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {}) for name in DISCRETE + ON_POLICY
} | VARIANTS
CASES |= {
    f"{name} of several": (name, {"env.name": CHOICES})
    for name in ON_POLICY
    if name not in ("SIL", "PPOSIL")
}
ROW = Spaces((7,), "float32", "discrete", (4,), parts=(ObsPart("seen", (3,), "float32"),), mask=4)
SEEN = [0.3, -0.2, 0.9]


@pytest.fixture(autouse=True)
def _envs():
    with masks.registered():
        yield


def plays_by_the_rules(loop):
    assert loop.env.episodes.count > 3
    assert set(loop.env.episodes.lengths) == {LENGTH}
    assert set(play(loop.agent, loop.env, 5).lengths) == {LENGTH}
    assert set(play(loop.agent, loop.env, 5, explore=True).lengths) == {LENGTH}


@pytest.mark.parametrize("case", CASES)
def test_no_forbidden_action_is_ever_taken(case, make_spec, train):
    algorithm, values = CASES[case]
    plays_by_the_rules(train(make_spec(algorithm, MASKED | values), 150))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["DQN", "PPO"])
def test_compiled_agents_keep_to_the_mask(algorithm, make_spec, train):
    keys = {"meta.compile": "on", "agent.net.hid_layers": [300]}  # too wide for NumPy
    plays_by_the_rules(train(make_spec(algorithm, MASKED | keys), 150))


def test_turned_off_mines_are_stepped_on(make_spec, train):
    loop = train(make_spec("PPO", MASKED | {"env.action_mask": False}), 150)
    assert min(loop.env.episodes.lengths) < LENGTH


def test_an_env_without_a_mask_has_nothing_around_its_net(make_spec):
    spec = make_spec("PPO", MASKED | {"env.source": "none"})
    agent = make_agent(spec, Spaces((4,), "float32", "discrete", (4,)), seed=0)
    assert type(agent.algorithm.modules["net"]) is MLPNet


def test_an_algorithm_without_masks_is_refused_by_key(make_spec):
    spec = make_spec("PPO", MASKED)
    info = spec.agent.algorithm_info
    object.__setattr__(info, "action_masks", False)
    try:
        with pytest.raises(
            SpecError, match=r"env\.action_mask: PPO cannot keep to the action mask"
        ):
            make_agent(spec, ROW, seed=0)
    finally:
        object.__setattr__(info, "action_masks", True)


def test_masks_are_not_normalised(make_spec, train):
    loop = train(make_spec("PPO", MASKED | {"env.normalize_obs": True, "env.frame_stack": 2}), 150)
    rows = loop.env.obs.reshape(3, 2, 8)
    seen = loop.agent._preprocessor.obs(torch.from_numpy(loop.env.obs)).reshape(3, 2, 8).numpy()
    np.testing.assert_array_equal(seen[..., 4:], rows[..., 4:])
    assert not np.array_equal(seen[..., :4], rows[..., :4])


# What is masked equals what is computed without the forbidden actions


EVERY_MASK = [m for m in itertools.product((0.0, 1.0), repeat=4) if any(m)]


def test_log_probs_and_entropy_are_those_of_the_allowed_actions_alone(make_spec):
    algorithm: Any = make_agent(make_spec("PPO", {"env.num_envs": 1}), ROW, seed=0).algorithm
    state = algorithm.learner.state
    logits = algorithm.nets.policy(state, torch.tensor([[*SEEN, 1, 1, 1, 1]])).logits[0]
    for mask in EVERY_MASK:
        policy = algorithm.nets.policy(state, torch.tensor([[*SEEN, *mask]] * 4))
        allowed = [i for i, flag in enumerate(mask) if flag]
        p = logits[allowed].softmax(-1)
        entropy = -(p * p.log()).sum().item()
        assert policy.entropy().tolist() == pytest.approx([entropy] * 4, abs=1e-6)
        found = policy.log_prob(torch.arange(4))[allowed].tolist()
        assert found == pytest.approx(p.log().tolist(), abs=1e-6)
        assert policy.log_probs().exp().sum(-1).tolist() == pytest.approx([1.0] * 4)
        assert policy.mode()[0].item() in allowed


@pytest.mark.parametrize("algorithm", ["DQN", "DoubleDQN"])
def test_targets_take_the_maximum_over_the_allowed_actions(algorithm, make_spec):
    dqn: Any = make_agent(make_spec(algorithm), ROW, seed=0).algorithm
    dqn.learner.state["target_net"].normal_(generator=torch.Generator().manual_seed(1))
    rows = torch.tensor([[*SEEN, *mask] for mask in EVERY_MASK])
    found, _ = dqn._td_target(
        dqn.learner.state, torch.ones(len(rows)), rows, torch.full((len(rows),), 0.5)
    )
    free = torch.tensor([[*SEEN, 1, 1, 1, 1]])
    online = dqn._q(dqn.learner.state, free)[0][0]
    slow = dqn._q(dqn.learner.state | {"net": dqn.learner.state["target_net"]}, free)[0][0]
    select = online if algorithm == "DoubleDQN" else slow
    for target, mask in zip(found.tolist(), EVERY_MASK, strict=True):
        best = max((a for a in range(4) if mask[a]), key=lambda a: select[a])
        assert target == pytest.approx(1 + 0.5 * slow[best].item(), abs=1e-6)


@pytest.mark.parametrize("algorithm", ["QRDQN", "C51"])
def test_targets_are_the_distribution_of_the_best_allowed_action(algorithm, make_spec):
    dqn: Any = make_agent(make_spec(algorithm), ROW, seed=0).algorithm
    dqn.learner.state["target_net"].normal_(generator=torch.Generator().manual_seed(1))
    half, free = torch.tensor([0.5]), torch.tensor([[*SEEN, 1, 1, 1, 1]])
    slow = dqn._q(dqn.learner.state | {"net": dqn.learner.state["target_net"]}, free)[0]
    mean = dqn.q_value(slow)[0]
    for mask in EVERY_MASK:
        row = torch.tensor([[*SEEN, *mask]])
        found, _ = dqn._td_target(dqn.learner.state, torch.ones(1), row, half)
        best = max((a for a in range(4) if mask[a]), key=lambda a: mean[a])
        only_best = torch.nn.functional.one_hot(torch.tensor([best]), 4)
        expected, _ = dqn.target(torch.ones(1), half, slow, only_best)
        torch.testing.assert_close(found, expected)


def test_q_learning_finds_the_values_of_brute_force(make_spec):
    """Three states, three actions; what is forbidden would pay best."""
    rng = np.random.default_rng(0)
    reward, following = rng.normal(size=(3, 3)).round(1), rng.integers(3, size=(3, 3))
    allowed = np.array([[1, 0, 1], [0, 1, 1], [1, 0, 0]])
    reward[allowed == 0] = 100.0
    exact = np.zeros((3, 3))
    for _ in range(200):
        best = np.where(allowed, exact, -np.inf).max(-1)
        exact = reward + 0.5 * best[following]
    part = (ObsPart("state", (3,), "float32"),)
    spaces = Spaces((6,), "float32", "discrete", (3,), parts=part, mask=3)
    at, do = (torch.tensor(index) for index in allowed.nonzero())
    keys = {
        "agent.net": {"type": "MLPNet", "hid_layers": [], "polyak_coef": 1.0},
        "agent.net.update_type": "polyak",
        "agent.net.optim_spec": {"name": "SGD", "lr": 1.0},
        "agent.memory.batch_size": len(at),
    }
    dqn: Any = make_agent(make_spec("DQN", keys), spaces, seed=0).algorithm
    dqn.learner.set_coefficients(**{"net.lr": 0.5})
    rows = torch.tensor(np.concatenate([np.eye(3), allowed], 1), dtype=torch.float32)
    gained = torch.tensor(reward, dtype=torch.float32)[at, do]
    upcoming = rows[torch.tensor(following)[at, do]]
    full = torch.full_like(gained, 0.5)
    for _ in range(600):
        dqn.learner.step(rows[at], do, gained, upcoming, full, torch.ones_like(full))
    found = dqn._q(dqn.learner.state, rows)[0].numpy()
    np.testing.assert_allclose(found[allowed > 0], exact[allowed > 0], atol=1e-3)
    assert (found[allowed == 0] == FORBIDDEN).all()


def test_the_soft_target_expects_over_the_allowed_actions(make_spec):
    sac: Any = make_agent(make_spec("SoftActorCritic"), ROW, seed=0).algorithm
    for mask in EVERY_MASK:
        row = torch.tensor([[*SEEN, *mask]])
        log_p = sac._policy(sac.learner.state, row).log_probs()
        assert (log_p.exp()[0, [flag == 0 for flag in mask]] == 0).all()
        loss = sac._actor_step(sac.learner.state, row, torch.zeros(()))[1]["policy_loss"]
        assert math.isfinite(loss)


def test_the_target_entropy_is_a_share_of_what_the_mask_leaves(make_spec):
    sac: Any = make_agent(make_spec("SoftActorCritic"), ROW, seed=0).algorithm
    sac.learner.set_coefficients(**{"log_alpha.lr": 0.1}, target_entropy=0.5 * math.log(4))

    def moved(mask, entropy):
        row = torch.tensor([[*SEEN, *mask]])
        share = sac._reachable(row)
        return sac._alpha_step(sac.learner.state, torch.tensor([entropy]), share)["log_alpha"]

    before = sac.learner.state["log_alpha"]
    assert moved([1, 1, 0, 0], 0.5 * math.log(2) + 0.01) < before
    assert moved([1, 1, 0, 0], 0.5 * math.log(2) - 0.01) > before
    assert moved([1, 1, 1, 1], 0.5 * math.log(4) - 0.01) > before


def test_no_gradient_reaches_a_forbidden_output():
    logits = torch.randn(1, 3, requires_grad=True)
    log_probs = masked(logits, torch.tensor([[1.0, 0.0, 1.0]])).log_softmax(-1)
    (log_probs.exp() * log_probs).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 1] == 0
    assert torch.isfinite(logits.grad).all()


def test_a_mask_that_allows_nothing_allows_all():
    assert allowed_actions(torch.tensor([[0.0, 0.0], [0.0, 1.0]])).tolist() == [
        [True, True],
        [False, True],
    ]


def test_allowed_actions_are_drawn_evenly():
    allowed = torch.tensor([[False, True, False, True, True]]).expand(9, -1)
    uniform = torch.tensor([0.0, 0.2, 0.33, 0.34, 0.5, 0.66, 0.67, 0.9, 0.999])
    assert draw_allowed(allowed, uniform).tolist() == [1, 1, 1, 3, 3, 3, 4, 4, 4]


def test_epsilon_greedy_explores_the_allowed_actions():
    q_value = torch.tensor([[FORBIDDEN, 1.0, FORBIDDEN, 2.0]]).expand(4, -1)
    noise = torch.tensor([[0.0, 0.1], [0.0, 0.9], [0.9, 0.1], [0.9, 0.9]])
    assert masked_epsilon_greedy(q_value, torch.tensor(0.5), noise).tolist() == [1, 3, 3, 3]


@pytest.mark.parametrize("frames", [1, 3])
def test_numpy_masks_as_torch_does(frames, make_spec):
    shape = (7 * frames,) if frames > 1 else (7,)
    part = (ObsPart("seen", (3,), "float32"),)
    spaces = Spaces(shape, "float32", "discrete", (4,), frame_stack=frames, parts=part, mask=4)
    dqn: Any = make_agent(make_spec("DQN"), spaces, seed=0).algorithm
    net = dqn.modules["net"]
    forward = numpy_policy(net, rows=4)
    assert isinstance(net, RowNet)
    assert forward is not None
    rows = torch.randn(16, *shape, generator=torch.Generator().manual_seed(0))
    rows[:, -4:] = (rows[:, -4:] > 0).float()
    np.testing.assert_allclose(forward(rows.numpy())[0], net(rows)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "mixed", "frames"),
    [
        ("PPO", False, 8000),
        ("PPO", True, 8000),
        ("DQN", True, 5000),
        ("SoftActorCritic", True, 2400),
    ],
)
def test_masked_agents_learn_to_find_the_best_allowed_action(
    algorithm, mixed, frames, make_spec, train
):
    keys = MASKED | {"env.num_envs": 8, "env.mixed": mixed, "agent.net.hid_layers": [64]}
    loop = train(make_spec(algorithm, keys | {"env.max_frame": frames}), frames)
    assert np.mean(play(loop.agent, loop.env, 64).returns) > 0.75 * LENGTH  # 0.45 at random
