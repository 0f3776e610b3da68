"""A saved agent acts as it did, whoever saved it; a hostile folder is refused."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import make_agent
from slm_lab.agent.saving import save_models, snapshot
from slm_lab.env.make import make_env
from slm_lab.playback.saved_agent import load_agent, load_session
from slm_lab.runs.find import open_run
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import SpecError
from slm_lab.spec.run_folder import RunFolderError
from slm_lab.spec.schema import SAVED_RUN_KEYS
from slm_lab.training.loop import Loop

GRAPH = {"input": "x", "modules": {"body": ["x"]}, "output": "body"}


def net_file(folder: Path, best: bool = True) -> Path:
    return folder / f"model/tiny_t0_s0{'_ckpt-best' if best else ''}_net_model.pt"


def change_spec(folder: Path, **values: Any) -> None:
    path = folder / "tiny_t0_spec.json"
    tree = json.loads(path.read_text())
    for key, value in values.items():
        *parents, last = key.split("__")
        block = tree
        for parent in parents:
            block = block[parent]
        block[last] = value
    path.write_text(json.dumps(tree))


# Loading


def test_a_loaded_agent_acts_as_the_one_that_was_saved(pendulum, tmp_path):
    env = make_env(pendulum.env, seed=1)
    trained = make_agent(pendulum, env.spaces, seed=1)
    loop = Loop(trained, env, pendulum.env.max_frame)
    loop.run(lambda: None, every=100, should_stop=lambda: False)
    layout = RunLayout.create("tiny", "now", tmp_path)
    layout.trial_spec_path(0).write_text(json.dumps(pendulum.to_dict()))
    save_models(snapshot(trained), layout, 0, 0, best=True)

    agent, env = load_agent(layout.predir, num_envs=3)
    obs = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    expected = trained.act(obs, explore=False)
    assert env.num_envs == 3
    assert np.array_equal(agent.act(obs, explore=False), expected)
    assert np.abs(expected).max() > 0


def test_best_and_last_are_two_agents(make_spec, train_folder):
    # Stopped at frame 140: the update at 128 came after the last checkpoint, that of frame 100.
    folder = train_folder(make_spec(env__name="probe/ConstantReward-v0"), stop_after=70)
    best, last = (load_agent(folder, best=best)[0] for best in (True, False))
    weights = [agent.algorithm.modules["net"].state_dict() for agent in (best, last)]
    assert not torch.equal(weights[0]["tails.0.bias"], weights[1]["tails.0.bias"])
    for kind, state in zip((True, False), weights, strict=True):
        saved = torch.load(net_file(folder, best=kind), weights_only=True)
        assert all(torch.equal(state[key], saved[key]) for key in saved)


def test_statistics_stay_frozen_whatever_the_agent_is_shown(pendulum, train_folder):
    agent, env = load_agent(train_folder(pendulum), num_envs=2)
    before = agent.statistics()["obs_normalizer"]
    assert float(before["count"]) > 0
    obs = env.reset()
    for _ in range(50):
        action = agent.act(obs)
        transition = env.step(agent.env_action(action))
        agent.observe(obs, action, transition)
        obs = transition.obs
    after = agent.statistics()["obs_normalizer"]
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_session_can_be_chosen_and_one_that_is_not_there_is_named(make_spec, train_folder):
    folder = train_folder(make_spec(), sessions=2)
    first, second = (load_agent(folder, session=s)[0].algorithm.modules["net"] for s in (0, 1))
    assert not torch.equal(
        first.state_dict()["tails.0.weight"], second.state_dict()["tails.0.weight"]
    )
    with pytest.raises(RunFolderError, match=r"trial 0 session 7\. Saved: session 0, 1"):
        load_agent(folder, session=7)


def test_the_seed_decides_the_episodes_and_is_no_seed_of_training(make_spec, train_folder):
    spec = make_spec(env__name="CartPole-v1", env__num_envs=1)
    folder = train_folder(spec)
    seed = spec.meta.random_seed
    first, again, other = (load_agent(folder, seed=s)[1].reset() for s in (seed, seed, seed + 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_random_agent_is_replayed_without_a_file(make_spec, train_folder):
    folder = train_folder(make_spec("Random"))
    change_spec(folder, agent={"name": "Random", "algorithm": {"name": "Random"}})
    agent, env = load_agent(folder)
    assert agent.act(env.reset()).shape == (1,)


# Folders of the original


def test_a_folder_as_the_original_writes_it_is_replayed(make_spec, train_folder):
    folder = train_folder(make_spec(env__name="CartPole-v1"))
    agent, _ = load_agent(folder)
    net = agent.algorithm.modules["net"]
    torch.save(net.state_dict(), net_file(folder))  # an OrderedDict with metadata
    torch.save(
        torch.optim.Adam(net.parameters()).state_dict(), folder / "model/tiny_t0_s0_net_optim.pt"
    )
    saved = json.loads((folder / "tiny_t0_spec.json").read_text())
    added = dict.fromkeys(SAVED_RUN_KEYS) | {"random_seed": 1763000000, "session": 0}
    change_spec(folder, meta=saved["meta"] | added)
    shutil.rmtree(folder / "info")
    replayed, env = load_agent(folder / "tiny_t0_spec.json")
    obs = env.reset()
    assert np.array_equal(replayed.act(obs, explore=False), agent.act(obs, explore=False))


def test_statistics_that_were_never_saved_are_named(pendulum, train_folder):
    folder = train_folder(pendulum)
    for path in folder.glob("model/*obs_normalizer*"):
        path.unlink()
    with pytest.raises(RunFolderError, match=r"env.normalize_obs is true.*original SLM Lab"):
        load_agent(folder)


def test_a_dueling_net_may_list_its_heads_twice(make_spec, train_folder):
    spec = make_spec("DQN", agent__net__type="DuelingMLPNet")
    folder = train_folder(spec)
    state = torch.load(net_file(folder), weights_only=True)
    twice = state | {
        f"model_tails.{i}.{kind}": state[f"{head}.{kind}"]
        for i, head in enumerate(("v", "adv"))
        for kind in ("weight", "bias")
    }
    torch.save(twice, net_file(folder))
    agent, _ = load_agent(folder)
    assert torch.equal(agent.algorithm.modules["net"].state_dict()["v.weight"], state["v.weight"])


def test_a_count_of_batches_goes_by_either_name(make_spec, train_folder):
    body = [{"LazyLinear": {"out_features": 4}}, {"LazyBatchRenorm1d": {}}, "Tanh"]
    net = {
        "type": "TorchArcNet",
        "shared": False,
        "arc": {"modules": {"body": {"Sequential": body}}, "graph": GRAPH},
        "optim_spec": {"name": "Adam", "lr": 0.01},
    }
    folder = train_folder(make_spec("DQN", agent__net=net))
    state = torch.load(net_file(folder), weights_only=True)
    steps = state.pop("body.body.1.steps")
    torch.save(state | {"body.body.1.step": steps.long()}, net_file(folder))
    agent, _ = load_agent(folder)
    assert agent.algorithm.modules["net"].state_dict()["body.body.1.steps"] == steps > 0


def test_a_log_std_that_the_original_ignored_is_ignored(make_spec, train_folder):
    folder = train_folder(make_spec(env__name="probe/ContinuousAction-v0"))
    change_spec(folder, agent__net__log_std_init=0.5)  # inert there for one action
    state = torch.load(net_file(folder), weights_only=True)
    assert state["tails.0.weight"].shape == (2, 4)  # mean and log-std, both from the net
    agent, env = load_agent(folder)
    obs = torch.from_numpy(env.reset())
    mean = agent.algorithm.modules["net"](obs)[0][:, :1]
    assert torch.equal(agent.policy(obs), mean.clamp(-1, 1))


# Hostile and damaged folders


@pytest.fixture
def folder(make_spec, train_folder) -> Path:
    path: Path = train_folder(make_spec())
    load_agent(path)  # nothing is wrong yet
    return path


def refused(folder: Path, match: str, error: type[Exception] = RunFolderError) -> None:
    with pytest.raises(error, match=match):
        load_agent(folder)


class Payload:
    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


def test_code_in_a_model_file_is_not_run(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model.0.weight": Payload()}, net_file(folder))
    refused(folder, r"ckpt-best_net_model\.pt: refused by torch's weights-only reader")
    assert not (tmp_path / "executed").exists()


def test_code_in_the_old_format_of_torch_is_not_run(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"x": Payload()}, net_file(folder), _use_new_zipfile_serialization=False)
    refused(folder, "cannot be read as a file of torch.save")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ([1, 2], "holds a list, expected a state dict"),
        ({"model.0.weight": 3.0}, "`model.0.weight` is no plain tensor"),
        ({7: torch.zeros(1)}, "`7` is no plain tensor"),
        ({"x": torch.zeros(3).to_sparse()}, "`x` is no plain tensor"),
        ({"x": torch.zeros(3, dtype=torch.complex64)}, "`x` is no plain tensor"),
        ({"x": torch.empty(2**50, device="meta")}, "`x` is no plain tensor"),
        ({}, "lacks model.0.weight"),
    ],
)
def test_a_file_that_is_no_state_dict_is_refused(folder, content, match):
    torch.save(content, net_file(folder))
    refused(folder, match)


@pytest.mark.parametrize(
    ("name", "tensor", "match"),
    [
        ("model.0.weight", torch.zeros(4, 9), r"model.0.weight is \[4, 9\], expected \[4, 1\]"),
        # A view of one number, of any shape: it takes no memory until somebody copies it.
        ("model.0.weight", torch.zeros(1).expand(2**50, 8), "more numbers than the file holds"),
        ("model.0.weight", torch.full((4, 1), torch.nan), "is not finite; training had diverged"),
        ("model.9.weight", torch.zeros(1), "has model.9.weight, unknown to this net"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(folder, name, tensor, match):
    state = torch.load(net_file(folder), weights_only=True)
    torch.save(state | {name: tensor}, net_file(folder))
    refused(folder, match)


def test_statistics_that_do_not_fit_are_named(pendulum, train_folder):
    folder = train_folder(pendulum)
    (path,) = folder.glob("model/*ckpt-best_obs_normalizer_model.pt")
    torch.save(torch.load(path, weights_only=True) | {"mean": torch.zeros(99)}, path)
    refused(folder, r"obs_normalizer_model.pt: does not fit.*mean is \[99\], expected \[3\]")


def test_a_file_that_unfolds_is_refused_before_it_does(folder):
    path = net_file(folder)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data + bytes(10**7) if "/data/" in name else data)
    refused(folder, "would unfold to more than its own size")


@pytest.mark.parametrize("keep", [0, 10, 500])
def test_a_file_cut_short_is_refused(folder, keep):
    net_file(folder).write_bytes(net_file(folder).read_bytes()[:keep])
    refused(folder, "damaged, or only partly downloaded")


def test_a_flipped_byte_never_passes_as_an_exception_of_torch(folder):
    whole = net_file(folder).read_bytes()
    for place in range(0, len(whole), 97):
        net_file(folder).write_bytes(
            whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :]
        )
        try:
            load_agent(folder)
        except RunFolderError:
            continue


def test_a_missing_file_is_named(folder):
    net_file(folder).unlink()
    refused(folder, "no best agent of trial 0, expected tiny_t0_s0_ckpt-best_net_model.pt")


def test_a_model_that_is_a_link_out_of_the_folder_is_not_followed(folder, tmp_path):
    outside = tmp_path / "outside.pt"
    net_file(folder).rename(outside)
    os.symlink(outside, net_file(folder))
    refused(folder, "is a link")


@pytest.mark.parametrize("layers", [[10**6, 10**6], [2000] * 500])
def test_a_spec_of_absurd_nets_takes_no_memory(folder, layers):
    change_spec(folder, agent__net__hid_layers=layers)
    refused(folder, "its spec describes nets far larger than the saved ones")


def test_a_layer_list_without_end_is_no_file(folder):
    change_spec(
        folder, agent__net={"type": "TorchArcNet", "shared": False, "arc_file": "/dev/zero"}
    )
    refused(folder, "agent.net.arc_file: /dev/zero cannot be read", SpecError)


def test_a_module_in_the_folder_is_not_imported(folder, monkeypatch):
    (folder / "evil.py").write_text("open('executed', 'w')")
    change_spec(folder, env__name="evil:Evil-v0")
    monkeypatch.chdir(folder)
    refused(Path("."), "no code is ever imported from there", SpecError)
    assert not (folder / "executed").exists()


def test_a_refused_folder_is_left_as_it_was(folder):
    net_file(folder).write_bytes(b"nothing")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    refused(folder, "cannot be read")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_an_env_of_other_spaces_does_not_fit_the_net(folder):
    change_spec(folder, env__name="CartPole-v1")
    refused(folder, r"model.0.weight is \[4, 1\], expected \[4, 4\]")


def test_the_envs_of_a_refused_session_are_closed(folder, monkeypatch):
    closed = []
    change_spec(folder, env__name="CartPole-v1")

    def make(*arguments: Any, **options: Any) -> Any:
        env = make_env(*arguments, **options)
        monkeypatch.setattr(env, "close", lambda: closed.append(1))
        return env

    monkeypatch.setattr("slm_lab.playback.saved_agent.make_env", make)
    with pytest.raises(RunFolderError):
        load_session(open_run(folder), 0, best=True, num_envs=1)
    assert closed == [1]
