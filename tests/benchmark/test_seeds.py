"""Seeds follow from what a spec trains, and from nothing else."""

from __future__ import annotations

import hashlib

import pytest

from slm_lab.benchmark import seeds
from slm_lab.benchmark.manifest import load_manifest
from slm_lab.benchmark.seeds import derived_seed, fingerprint, training_keys
from slm_lab.spec import load_spec
from slm_lab.spec.load import spec_from_dict
from tests.tiny import TINY

TEXT = (
    '{"agent.algorithm.entropy_coef_spec":{"name":"no_decay","start_val":0.01},'
    '"agent.algorithm.gamma":0.9,"agent.algorithm.lam":0.9,"agent.algorithm.minibatch_size":16,'
    '"agent.algorithm.name":"PPO","agent.algorithm.time_horizon":16,'
    '"agent.algorithm.training_epoch":1,"agent.critic_net.hid_layers":[4],'
    '"agent.critic_net.hid_layers_activation":"tanh",'
    '"agent.critic_net.optim_spec":{"lr":0.01,"name":"Adam"},"agent.critic_net.type":"MLPNet",'
    '"agent.memory.name":"OnPolicyBatchReplay","agent.net.hid_layers":[4],'
    '"agent.net.hid_layers_activation":"tanh","agent.net.optim_spec":{"lr":0.01,"name":"Adam"},'
    '"agent.net.type":"MLPNet","env.max_frame":1000,"env.name":"CartPole-v1","env.num_envs":2,'
    '"meta.log_frequency":50}'
)
CARTPOLE = "slm_lab/spec/benchmark/ppo/ppo_cartpole.json"


@pytest.fixture
def spec():
    return load_spec(CARTPOLE, "ppo_cartpole")


def test_a_fingerprint_stays_the_same_with_every_version_of_the_lab():
    """If this fails after a change of a default: write the old one into FIRST_DEFAULTS."""
    tree = {**TINY, "env": {"name": "CartPole-v1", "max_frame": 1000, "num_envs": 2}}
    spec = spec_from_dict(tree, "tiny")
    assert seeds.canonical(training_keys(spec)) == TEXT
    assert fingerprint(spec) == hashlib.sha256(TEXT.encode()).hexdigest()


def test_a_seed_is_the_first_31_bits_of_the_hash_of_fingerprint_and_trial():
    digest = hashlib.sha256(b"abc 1").hexdigest()
    assert derived_seed("abc", 1) == int(digest[:8], 16) // 2
    assert derived_seed("abc", 0) != derived_seed("abc", 1)


@pytest.mark.parametrize(
    "change",
    [
        {"agent.algorithm.gamma": 0.98},
        {"agent.net.optim_spec.lr": 1.001e-3},
        {"env.max_frame": 200_001},
        {"meta.log_frequency": 1000},
        {"meta.precision": "bfloat16"},
        {"agent.algorithm.entropy_coef_spec.start_val": 0.002},
    ],
)
def test_what_changes_training_or_its_measure_changes_the_fingerprint(spec, change):
    assert fingerprint(spec.with_values(change)) != fingerprint(spec)


@pytest.mark.parametrize(
    "change",
    [
        {"meta.random_seed": 9},
        {"meta.max_session": 8},
        {"meta.max_trial": 3, "meta.search_resources": {"cpu": 2}},
        {"meta.compile": "off", "meta.threads": 2, "meta.checkpoint_frequency": 100},
        {"agent.net.gpu": True, "env.num_threads": 2},
        {"agent.name": "another label"},
        {"search": {"agent.algorithm.gamma__uniform": [0.9, 0.99]}},
    ],
)
def test_seed_sessions_search_and_machine_leave_it(spec, change):
    assert fingerprint(spec.with_values(change)) == fingerprint(spec)


def test_writing_out_every_default_leaves_it():
    """So a key that a later version adds leaves it too."""
    row = load_manifest().by_id["hopper-v5_sac"]
    spec = row.spec()
    written = spec_from_dict(spec.resolved(), "another_name")
    assert len(str(spec.resolved())) > len(str(spec.to_dict())) + 500
    assert fingerprint(written) == fingerprint(spec)


def test_a_default_that_changes_keeps_fingerprints_that_state_a_value(spec, monkeypatch):
    """As if gamma had been 0.9 by default when fingerprints began, and is 0.99 now."""
    stated = spec.with_values({"agent.algorithm.gamma": 0.95})
    before = fingerprint(stated), fingerprint(spec)
    monkeypatch.setitem(seeds.FIRST_DEFAULTS, "agent.algorithm.gamma", 0.9)
    assert fingerprint(stated) == before[0]
    assert fingerprint(spec) != before[1]
    assert "agent.algorithm.gamma" not in training_keys(
        spec.with_values({"agent.algorithm.gamma": 0.9})
    )
