"""Specs in the words of the original SLM Lab train as they are: each algorithm with each memory and
net it may have, keys written the way existing files write them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from slm_lab import make_agent, make_env
from slm_lab.spec import spec_from_dict

MLP: dict[str, Any] = {
    "type": "MLPNet",
    "hid_layers": [16],
    "hid_layers_activation": "relu",
    "clip_grad_val": None,
    "loss_spec": {"name": "MSELoss"},
    "optim_spec": {"name": "AdamW", "lr": 1e-3},
    "lr_scheduler_spec": None,
    "gpu": "auto",
}
WITHOUT_LAYERS = {key: value for key, value in MLP.items() if key != "hid_layers"}
NETS: dict[str, dict[str, Any]] = {
    "MLPNet": MLP,
    "layer_norm": {**MLP, "layer_norm": True},
    "DuelingMLPNet": {**MLP, "type": "DuelingMLPNet"},
    "TorchArcNet": {
        **WITHOUT_LAYERS,
        "type": "TorchArcNet",
        "arc": {
            "modules": {
                "body": {
                    "Sequential": [
                        {"LazyLinear": {"out_features": 16}},
                        {"LayerNorm": {"normalized_shape": [16]}},
                        {"SiLU": None},
                    ]
                }
            },
            "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
        },
    },
}

ENTROPY = {"name": "linear_decay", "start_val": 0.01, "end_val": 0.0, "start_step": 1}
CLIP = {"name": "linear_decay", "start_val": 0.128, "end_val": 0.2, "start_step": 0}
EPSILON = {"name": "linear_decay", "start_val": 1.0, "end_val": 0.1, "start_step": 0}
for schedule in (ENTROPY, CLIP, EPSILON):
    schedule["end_step"] = 100

POLICY = {"action_pdtype": "default", "action_policy": "default", "explore_var_spec": None}
GREEDY = {"action_pdtype": "Argmax", "action_policy": "epsilon_greedy", "explore_var_spec": EPSILON}
BOLTZMANN = {**GREEDY, "action_pdtype": "Categorical", "action_policy": "boltzmann"}
REINFORCE = {**POLICY, "name": "Reinforce", "gamma": 0.99, "training_frequency": 1}
A2C = {
    **REINFORCE,
    "name": "ActorCritic",
    "lam": 0.95,
    "num_step_returns": None,
    "entropy_coef_spec": ENTROPY,
    "policy_loss_coef": 1.0,
    "val_loss_coef": 0.5,
}
PPO = {
    **POLICY,
    "name": "PPO",
    "gamma": 0.99,
    "lam": 0.95,
    "clip_eps_spec": CLIP,
    "entropy_coef_spec": ENTROPY,
    "val_loss_coef": 0.5,
    "clip_val_loss": False,
    "time_horizon": 16,
    "minibatch_size": 16,
    "training_frequency": 1,
    "training_epoch": 2,
}
DQN = {
    **GREEDY,
    "name": "DQN",
    "gamma": 0.99,
    "training_frequency": 4,
    "training_start_step": 16,
    "training_iter": 2,
    "training_batch_iter": 2,
}
SAC = {**REINFORCE, "name": "SoftActorCritic", "training_frequency": 4, "training_start_step": 16}
SIL = {
    "sil_policy_loss_coef": 1.0,
    "sil_val_loss_coef": 0.1,
    "training_iter": 2,
    "training_batch_iter": 2,
}

EPISODES = {"name": "OnPolicyReplay"}
BATCH = {"name": "OnPolicyBatchReplay"}
ELITE = {"name": "OnPolicyCrossEntropy", "cross_entropy": 0.5}
REPLAY = {"name": "Replay", "batch_size": 8, "max_size": 1e4, "use_cer": True}
PRIORITIZED = {**REPLAY, "name": "PrioritizedReplay", "alpha": 0.6, "epsilon": 1e-4}
IMITATED = {"sil_replay_name": "Replay", "batch_size": 8, "max_size": 1e4, "use_cer": True}

SHARED = {"shared": True, "use_same_optim": False}
SEPARATE = {
    "shared": False,
    "use_same_optim": False,
    "actor_optim_spec": {"name": "AdamW", "lr": 1e-3},
    "critic_optim_spec": {"name": "RMSprop", "lr": 1e-3},
}
COPIES = {"update_type": "replace", "update_frequency": 8, "polyak_coef": 0.0}
POLYAK = {"update_type": "polyak", "update_frequency": 0.9, "polyak_coef": 0.005}

CARTPOLE = {"name": "CartPole-v1"}
FOUR = {"name": "CartPole-v1", "num_envs": 4}
PENDULUM = {"name": "Pendulum-v1", "num_envs": 2}
LANDER = {"name": "LunarLander-v3", "continuous": True, "num_envs": 2}

Case = tuple[dict[str, Any], dict[str, Any], str, dict[str, Any], dict[str, Any]]
CASES: list[Case] = [
    # (algorithm, memory, net, further keys of the net, env)
    ({"name": "Random", "training_frequency": 1}, EPISODES, "MLPNet", {}, CARTPOLE),
    *((REINFORCE, memory, "MLPNet", {}, CARTPOLE) for memory in (EPISODES, ELITE)),
    ({**REINFORCE, "center_return": True}, BATCH, "TorchArcNet", {}, PENDULUM),
    *((A2C, memory, "MLPNet", SEPARATE, FOUR) for memory in (EPISODES, BATCH, ELITE)),
    *((A2C, BATCH, net, SHARED, LANDER) for net in ("layer_norm", "TorchArcNet")),
    ({**A2C, "lam": None, "num_step_returns": 5}, BATCH, "MLPNet", SHARED, CARTPOLE),
    ({**A2C, "lam": None, "num_step_returns": 1}, EPISODES, "MLPNet", SEPARATE, CARTPOLE),
    ({**A2C, "lam": None}, EPISODES, "MLPNet", SEPARATE, CARTPOLE),
    *((PPO, BATCH, net, SEPARATE, FOUR) for net in ("MLPNet", "layer_norm", "TorchArcNet")),
    *((PPO, BATCH, "MLPNet", {**SEPARATE, "log_std_init": 0.0}, e) for e in (PENDULUM, LANDER)),
    ({**PPO, "action_pdtype": "NormalTanh"}, BATCH, "MLPNet", SHARED, LANDER),
    ({**PPO, "action_pdtype": "MultivariateNormal"}, BATCH, "MLPNet", SHARED, LANDER),
    (
        {**PPO, "symlog": True, "clip_vloss": True, "normalize_v_targets": True}
        | {"normalize_advantages": "percentile", "entropy_coef_spec": None},
        BATCH,
        "MLPNet",
        SHARED,
        FOUR,
    ),
    ({**PPO, "time_horizon": None}, EPISODES, "MLPNet", SEPARATE, CARTPOLE),
    *(
        ({**GREEDY, "name": "SARSA", "gamma": 0.9, "training_frequency": n}, m, "MLPNet", {}, FOUR)
        for m, n in ((EPISODES, 1), (BATCH, 8))
    ),
    *(({**DQN, "name": n}, REPLAY, "MLPNet", {}, FOUR) for n in ("VanillaDQN", "DQNBase")),
    *(
        ({**DQN, "name": name}, memory, net, COPIES, FOUR)
        for name, memory, net in (
            ("DQN", REPLAY, "MLPNet"),
            ("DQN", PRIORITIZED, "TorchArcNet"),
            ("DoubleDQN", PRIORITIZED, "DuelingMLPNet"),
        )
    ),
    ({**DQN, **BOLTZMANN}, REPLAY, "MLPNet", POLYAK, CARTPOLE),
    ({**DQN, **BOLTZMANN, "action_pdtype": "Argmax"}, REPLAY, "MLPNet", POLYAK, CARTPOLE),
    ({**SAC, "action_pdtype": "GumbelSoftmax"}, REPLAY, "MLPNet", POLYAK, FOUR),
    *((SAC, REPLAY, net, POLYAK, PENDULUM) for net in ("MLPNet", "TorchArcNet")),
    (SAC, PRIORITIZED, "MLPNet", POLYAK, LANDER),
    *(({**SAC, "name": "CrossQ"}, REPLAY, "MLPNet", {}, env) for env in (FOUR, LANDER)),
    *(
        ({**A2C, **SIL, "name": "SIL"}, {**memory, **IMITATED}, "MLPNet", SEPARATE, CARTPOLE)
        for memory in (EPISODES, BATCH)
    ),
    ({**A2C, "name": "SIL"}, {**EPISODES, **IMITATED}, "MLPNet", SEPARATE, CARTPOLE),
    ({**PPO, **SIL, "name": "PPOSIL"}, {**BATCH, **IMITATED}, "MLPNet", SHARED, FOUR),
]


def label(case: Case) -> str:
    algorithm, memory, net, _, env = case
    return f"{algorithm['name']}-{memory['name']}-{net}-{env['name']}"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=label)
def test_an_algorithm_trains_with_each_memory_and_net_it_may_have(case: Case):
    algorithm, memory, net, more, env = case
    tree = {
        "agent": {
            "name": algorithm["name"],
            "algorithm": algorithm,
            "memory": memory,
            "net": {**NETS[net], **more},
        },
        "env": {**env, "max_t": None, "max_frame": 1e4},
        "meta": {"distributed": False, "max_session": 1, "max_trial": 1, "compile": "off"},
    }
    updates, moved = train(tree, frames=300)
    if algorithm["name"] != "Random":
        assert updates >= 1
        assert moved, "no parameter changed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheduler",
    [
        {"name": "LinearToZero", "frame": 1e4},
        {"name": "LinearToMin", "frame": 1e4, "min_factor": 0.033},
        {"name": "StepLR", "step_size": 2, "gamma": 0.9},
        {"name": "MultiStepLR", "milestones": [2, 3]},
        {"name": "ExponentialLR", "gamma": 0.9},
        {"name": "CosineAnnealingLR", "T_max": 10},
        {"name": "CosineAnnealingWarmRestarts", "T_0": 5},
        {"name": "CyclicLR", "base_lr": 1e-4, "max_lr": 1e-3},
        {"name": "OneCycleLR", "max_lr": 1e-3, "total_steps": 100},
    ],
    ids=lambda spec: str(spec["name"]),
)
def test_a_learning_rate_scheduler_takes_its_own_arguments(scheduler: dict[str, Any]):
    tree = {
        "agent": {
            "algorithm": PPO,
            "memory": BATCH,
            "net": {**MLP, **SHARED, "lr_scheduler_spec": scheduler},
        },
        "env": {**FOUR, "max_frame": 1e4},
        "meta": {"max_session": 1, "compile": "off"},
    }
    assert train(tree, frames=200)[0] >= 2


def train(tree: dict[str, Any], *, frames: int) -> tuple[int, bool]:
    """(updates, whether any parameter moved) after a few hundred frames."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = spec_from_dict(tree, "original")
    env = make_env(spec.env, seed=0)
    agent = make_agent(spec, env.spaces, seed=0)
    before = parameters(agent)
    obs, updates = env.reset(), 0
    for frame in range(0, frames, env.num_envs):
        action = agent.act(obs, frame=frame)
        transition = env.step(agent.env_action(action))
        agent.observe(obs, action, transition)
        obs = transition.obs
        if agent.ready:
            agent.update(frame)
            updates += 1
    env.close()
    after = parameters(agent)
    return updates, any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def parameters(agent: Any) -> list[torch.Tensor]:
    modules = agent.algorithm.modules.values()
    return [p.detach().clone() for module in modules for p in module.parameters()]
