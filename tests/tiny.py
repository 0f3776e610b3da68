"""The smallest PPO that still trains, and the smallest net for images."""

from __future__ import annotations

import copy
from typing import Any

from slm_lab.spec import Spec, spec_from_dict

TINY_AGENT: dict[str, Any] = {
    "name": "PPO",
    "algorithm": {
        "name": "PPO",
        "gamma": 0.9,
        "lam": 0.9,
        "clip_eps_spec": {"name": "no_decay", "start_val": 0.2},
        "entropy_coef_spec": {"name": "no_decay", "start_val": 0.01},
        "time_horizon": 16,
        "minibatch_size": 16,
        "training_epoch": 1,
    },
    "memory": {"name": "OnPolicyBatchReplay"},
    "net": {
        "type": "MLPNet",
        "shared": False,
        "hid_layers": [4],
        "hid_layers_activation": "tanh",
        "optim_spec": {"name": "Adam", "lr": 0.01},
    },
}
TINY_CONV_NET: dict[str, Any] = {
    "type": "ConvNet",
    "conv_hid_layers": [[8, 8, 4, 0, 1]],
    "fc_hid_layers": [16],
    "hid_layers_activation": "relu",
    "optim_spec": {"name": "Adam", "lr": 0.001},
    "shared": True,
}
TINY: dict[str, Any] = {
    "agent": TINY_AGENT,
    "env": {"name": "CartPole-v1", "num_envs": 2, "max_frame": 200},
    "meta": {"max_session": 1, "log_frequency": 50, "compile": "off"},
}


def tiny(**values: Any) -> Spec:
    """tiny(env__max_frame=400) -> the tiny spec with that value at `env.max_frame`."""
    keys = {key.replace("__", "."): value for key, value in values.items()}
    return spec_from_dict(copy.deepcopy(TINY), "tiny").with_values(keys)
