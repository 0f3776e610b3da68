"""Fine-tuning: a run begins with what fits of another run's weights and statistics."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from loguru import logger

from slm_lab import RunOptions, SpecError, load_spec, run
from slm_lab.runs.init_from import describe_source, source_agent, with_source
from slm_lab.runs.layout import RunLayout
from slm_lab.spec.run_folder import RunFolderError
from slm_lab.spec.schema import InitFrom
from slm_lab.training.init_from import own_parts
from slm_lab.training.options import RunOptions as Options
from slm_lab.training.session import Session
from tests.sessions import small_spec


@pytest.fixture
def begin(tmp_path):
    """The first state of a session that begins with another run's agent."""

    def make(spec, folder, index=0, **keys):
        source = {"folder": str(folder), **keys}
        layout = RunLayout.create("tiny", "fine", tmp_path)
        spec = spec.with_values({"meta.init_from": source})
        unit = Session(spec, layout, 0, index, Options())
        return {name: dict(tensors) for name, tensors in own_parts(unit._agent).items()}

    return make


def saved(folder, name, session=0, best=True):
    path = RunLayout(folder, "tiny").model_path(0, session, name, "model", best=best)
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("algorithm", ["PPO", "DQN", "SAC", "recurrent PPO", "CrossQ"])
def test_nets_and_target_nets_are_those_of_the_other_run(algorithm, begin, train_folder):
    folder = train_folder(small_spec(algorithm), mode="train")
    parts = begin(small_spec(algorithm, meta__random_seed=9), folder)
    assert "net" in parts
    assert ("target_net" in parts) == (algorithm == "DQN")
    for name, tensors in parts.items():
        theirs = saved(folder, name)
        assert all(torch.equal(tensors[key], theirs[key]) for key in theirs), name


def test_statistics_come_along_but_not_the_returns_of_running_episodes(
    begin, train_folder, pendulum
):
    folder = train_folder(pendulum, mode="train")
    parts = begin(pendulum.with_values({"meta.random_seed": 9}), folder, agent="last")
    theirs = saved(folder, "obs_normalizer", best=False)
    assert theirs["count"] > 0
    assert all(torch.equal(parts["obs_normalizer"][key], theirs[key]) for key in theirs)
    rewards = saved(folder, "reward_transform", best=False)
    assert torch.equal(parts["reward_transform"]["var"], rewards["var"])
    assert rewards["return"].any()
    assert not parts["reward_transform"]["return"].any()


def test_what_does_not_fit_begins_anew_and_is_named(begin, train_folder, tmp_path):
    folder = train_folder(small_spec("DQN"), mode="train")
    # The same hidden layer, another env: CartPole has 2 actions, Acrobot 3, and 6 observations.
    with pytest.raises(SpecError, match=r"nothing of .* fits this agent"):
        begin(small_spec("DQN", "Acrobot-v1", agent__net__hid_layers=[5]), folder)
    parts = begin(small_spec("DQN", "Acrobot-v1"), folder)
    theirs = saved(folder, "net")
    fitting = {key for key, x in parts["net"].items() if x.shape == theirs[key].shape}
    assert fitting == {"model.0.bias"}
    assert torch.equal(parts["net"]["model.0.bias"], theirs["model.0.bias"])


def test_the_lines_say_what_is_taken_and_why_not(begin, train_folder):
    folder = train_folder(small_spec("DQN"), mode="train")
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message}")
    begin(small_spec("DDQN+PER", "Acrobot-v1"), folder)
    logger.remove(sink)
    text = "".join(lines)
    assert "tiny_t0_s0 (best agent), sha256 " in text
    assert "init_from: net takes 1 of 4 tensors; not model.0.weight ([8, 4], here [8, 6])" in text
    assert "init_from: target_net takes 1 of 4 tensors" in text


def test_a_target_net_that_the_other_run_lacks_is_a_copy_of_its_net(begin, train_folder):
    folder = train_folder(small_spec("DQN"), mode="train")
    for path in (folder / "model").glob("*target_net*"):
        path.unlink()
    parts = begin(small_spec("DQN", meta__random_seed=9), folder)
    assert all(torch.equal(parts["target_net"][key], x) for key, x in parts["net"].items())


def test_session_i_takes_that_of_session_i_or_the_best(begin, train_folder):
    spec = small_spec("PPO", meta__max_session=2)
    folder = train_folder(spec, sessions=2, mode="train")
    layout = RunLayout(folder, "tiny")
    for session, score in enumerate((1.0, 5.0)):
        path = layout.session_metrics_scalar(0, session, "train")
        path.write_text(json.dumps({"total_reward_ma": score}))
    fine = small_spec("PPO", meta__max_session=3, meta__random_seed=9)

    def taken(index, **keys):
        weight = begin(fine, folder, index, **keys)["net"]["model.0.weight"]
        theirs = [saved(folder, "net", other)["model.0.weight"] for other in range(2)]
        return [torch.equal(weight, other) for other in theirs].index(True)

    assert [taken(0), taken(1), taken(2)] == [0, 1, 1]
    assert taken(0, session="best") == 1


def test_a_resume_continues_its_own_agent_after_the_other_run_is_gone(
    train_folder, run_session, same_run, tmp_path
):
    folder = train_folder(small_spec("SAC"), mode="train")
    spec = small_spec("SAC", meta__random_seed=9, meta__init_from=str(folder))
    whole = run_session(spec)
    layout = RunLayout.create("tiny", "then", tmp_path)
    asked = iter(range(10**9))
    Session(spec, layout, 0, 0, Options(), should_stop=lambda: next(asked) > 60).run()
    (folder / "model").rename(folder / "elsewhere")
    Session(spec, layout, 0, 0, Options(resume=True)).run()
    same_run(layout, whole)


def test_the_source_is_found_by_name_and_recorded_with_its_hash(tmp_path):
    options = RunOptions(data_dir=str(tmp_path / "data"), log_level="ERROR")
    first = run(small_spec("PPO"), "train", options)
    fine = small_spec("PPO", meta__random_seed=9, meta__init_from="tiny").renamed("fine")
    metrics = run(fine, "train", options)
    layout = RunLayout(metrics.predir, "fine")
    tree = json.loads(layout.trial_spec_path(0).read_text())
    assert tree["meta"]["init_from"]["folder"] == first.predir.as_posix()
    record = json.loads(layout.trial_provenance(0).read_text())["sittings"][-1]["init_from"]
    agent = source_agent(InitFrom(folder=str(first.predir)), 0)
    named = {"agent": "tiny_t0_s0 (best agent)", "sha256": agent.sha256()}
    assert record == {"folder": first.predir.as_posix(), "sessions": {"0": named}}
    # The name stands for the run that it meant: a resume does not look again.
    assert run(fine, "train@latest", options).frame == metrics.frame


def test_a_source_that_has_changed_is_refused_where_a_session_would_begin_with_it(tmp_path):
    """A resumed session that has a checkpoint of its own goes on, and the record stays."""
    options = RunOptions(data_dir=str(tmp_path / "data"), log_level="ERROR")
    first = run(small_spec("PPO"), "train", options)
    fine = small_spec("PPO", meta__random_seed=9, meta__init_from="tiny").renamed("fine")
    metrics = run(fine, "train", options)
    layout = RunLayout(metrics.predir, "fine")
    saved_spec = load_spec(layout.trial_spec_path(0), "fine")
    began_with = describe_source(saved_spec, layout)
    path = RunLayout(first.predir, "tiny").model_path(0, 0, "net", "model", best=True)
    weights = torch.load(path, weights_only=True)
    torch.save({key: tensor + 1 for key, tensor in weights.items()}, path)

    said: list[str] = []
    sink = logger.add(said.append, level="WARNING", format="{message}")
    assert describe_source(saved_spec, layout) == began_with
    logger.remove(sink)
    assert "has changed since this run began; the sessions go on" in "".join(said)
    shutil.rmtree(layout.checkpoint_dir(0, 0))
    with pytest.raises(SpecError, match=r"meta\.init_from: .* session 0, which has no checkpoint"):
        run(fine, "train@latest", options)
    path.unlink()  # gone altogether: what begins with it says so, and nothing else asks
    assert describe_source(saved_spec, layout) == began_with


def test_the_spec_of_the_other_run_is_not_even_read(begin, train_folder):
    folder = train_folder(small_spec("PPO"), mode="train")
    (folder / "tiny_t0_spec.json").write_text("no spec: import os")
    assert begin(small_spec("PPO", meta__random_seed=9), folder)


@pytest.mark.parametrize("where", ["nowhere", "data/nothing_2026_01_01_000000"])
def test_a_source_that_is_not_there_is_refused_before_anything_is_written(
    where, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"meta.init_from: .*no such run"):
        run(small_spec("PPO", meta__init_from=where), "train")
    assert not (tmp_path / "data").exists()


def test_a_run_without_agents_and_weights_that_are_not_finite_are_refused(
    begin, train_folder, tmp_path
):
    folder = train_folder(small_spec("PPO"), mode="train")
    path = RunLayout(folder, "tiny").model_path(0, 0, "net", "model", best=True)
    state = torch.load(path, weights_only=True)
    state["model.0.weight"][0] = float("nan")
    torch.save(state, path)
    with pytest.raises(RunFolderError, match=r"`model.0.weight` is not finite"):
        begin(small_spec("PPO"), folder)
    path.unlink()
    with pytest.raises(SpecError, match="holds no best agent of trial 0"):
        with_source(small_spec("PPO", meta__init_from=str(folder)), tmp_path)


def test_a_cluster_is_refused_by_name():
    with pytest.raises(SpecError, match=r"meta.init_from: the nodes of a cluster"):
        run(small_spec("PPO", meta__init_from="x"), "train", RunOptions(ray_address="auto"))
