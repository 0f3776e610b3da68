"""One seed of a spec, from its first frame to its files."""

from __future__ import annotations

import math
from typing import Any

import pytest
from loguru import logger

from slm_lab.agent.learning.learner import DivergenceError
from slm_lab.analysis.tables import drop_clock, read_session
from slm_lab.spec.algorithm import ALGORITHMS
from tests.sessions import ALGORITHMS as TINY

BASE = [
    "total_reward",
    "total_reward_ma",
    "loss",
    "fps",
    "frame",
    "wall_t",
    "t",
    "epi",
    "opt_step",
    "lr",
]
OWN = {
    "PPO": ["clip_eps", "entropy"],
    "ActorCritic": ["entropy_coef"],
    "Reinforce": ["entropy_coef", "entropy"],
}


def train_table(layout, session=0):
    return read_session(layout.session_csv(0, session, "train"))


def curve(layout, session=0) -> str:
    """The training table as text, without what depends on the speed of the machine."""
    text: str = drop_clock(train_table(layout, session)).to_csv()
    return text


@pytest.mark.parametrize("algorithm", OWN)
def test_the_columns_of_a_curve_are_known_and_in_order(make_spec, run_session, algorithm):
    spec = make_spec(algorithm)
    trained, tried = run_session(spec, mode="train"), run_session(spec, mode="dev")
    # Those of the original first, where tools expect them.
    columns, last = ALGORITHMS[algorithm].columns, ["last_100_return", "last_100_length"]
    assert list(columns[: len(OWN[algorithm])]) == OWN[algorithm]
    assert list(train_table(trained)) == [*BASE, *columns, "grad_norm", *last]
    assert list(train_table(tried)) == [*BASE, "grad_norm", *columns, *last]
    assert train_table(tried)["grad_norm"].iloc[-1] > 0
    final = train_table(trained).iloc[-1]
    assert final["last_100_return"] == final["total_reward"]  # several envs: the same mean


def test_rows_come_every_log_frequency_frames_and_at_the_end(make_spec, run_session):
    layout = run_session(make_spec(env__max_frame=180))
    assert train_table(layout)["frame"].tolist() == [50, 100, 150, 180]


def test_a_budget_shorter_than_log_frequency_still_gives_a_row(make_spec, run_session):
    layout = run_session(make_spec(env__max_frame=40))
    assert train_table(layout)["frame"].tolist() == [40]


def test_more_envs_than_log_frequency_give_a_row_each_step(make_spec, run_session):
    layout = run_session(make_spec(env__num_envs=8, env__max_frame=40, meta__log_frequency=3))
    assert train_table(layout)["frame"].tolist() == [8, 16, 24, 32, 40]


def test_a_row_counts_what_happened_so_far(make_spec, run_session):
    table = train_table(run_session(make_spec()))
    # 2 envs; a rollout of 16 steps is 32 frames: 1, 3, 4 and 6 updates of 2 minibatches, 2 nets
    assert table["t"].tolist() == [25, 50, 75, 100]
    assert table["epi"].isna().all()
    updates = [50 // 32, 100 // 32, 150 // 32, 200 // 32]
    per_update = table["opt_step"].iloc[0] / updates[0]
    assert table["opt_step"].tolist() == [n * per_update for n in updates]
    assert table["lr"].tolist() == pytest.approx([0.01] * 4)


def test_a_single_env_counts_its_episodes(make_spec, run_session):
    table = train_table(run_session(make_spec(env__num_envs=1, env__max_frame=100)))
    assert table["epi"].tolist() == [50, 100]  # a probe's episode is one step
    assert table["t"].tolist() == [0, 0]  # and a new one has just begun


@pytest.mark.parametrize("algorithm", OWN)
def test_the_same_seed_gives_the_same_curve_and_another_seed_another(
    make_spec, run_session, algorithm
):
    spec = make_spec(algorithm)
    first, again = curve(run_session(spec)), curve(run_session(spec))
    other = curve(run_session(spec.with_values({"meta.random_seed": 2})))
    assert first == again
    assert first != other


@pytest.mark.parametrize("num_envs", [1, 2, 60])  # 60: more than log_frequency
def test_training_in_rounds_gives_the_curve_of_one_go(make_spec, run_session, num_envs):
    spec = make_spec(env__num_envs=num_envs)
    in_rounds = run_session(spec, rounds=[1, 50, 51, 130])
    assert curve(in_rounds) == curve(run_session(spec))


def test_the_sessions_of_a_trial_differ(make_spec, run_session):
    spec = make_spec()
    assert curve(run_session(spec, 0), 0) != curve(run_session(spec, 1), 1)


def test_looking_does_not_change_what_is_seen(make_spec, run_session):
    # dev checks, separate evaluations and more rows leave the training as it is
    plain = train_table(run_session(make_spec(), mode="train"))
    watched = train_table(
        run_session(
            make_spec(meta__rigorous_eval=1, meta__log_frequency=10, meta__eval_frequency=10),
            mode="dev",
        )
    )
    both = ["frame", "total_reward", "loss", "entropy", "opt_step"]
    same_frames = watched[watched["frame"].isin(plain["frame"])]
    assert same_frames[both].reset_index(drop=True).equals(plain[both])


# Evaluation


def test_rigorous_eval_writes_a_table_of_its_own(make_spec, run_session):
    layout = run_session(make_spec(meta__rigorous_eval=1))
    evaluated = read_session(layout.session_csv(0, 0, "eval"))
    assert evaluated["frame"].tolist() == [100, 200]
    assert list(evaluated) == list(train_table(layout))
    # greedy: every env does the same, so that the mean return is one of the two rewards
    assert set(evaluated["total_reward"]) <= {-1.0, 1.0}


def test_without_rigorous_eval_nothing_is_named_an_evaluation(make_spec, run_session):
    layout = run_session(make_spec())
    assert [path.name for path in layout.predir.rglob("*eval*")] == []


def test_a_policy_that_moves_seldom_leaves_no_gaps_in_its_columns(make_spec, run_session):
    spec = make_spec("SoftActorCritic", agent__algorithm__policy_delay=7, meta__log_frequency=10)
    table = train_table(run_session(spec, mode="train"))
    learned = table[table["policy_loss"].notna().cummax()]
    assert len(learned) > 5
    assert learned["policy_loss"].notna().all()


@pytest.mark.parametrize("algorithm", [name for name in TINY if ALGORITHMS[name].learns])
def test_every_column_of_an_algorithm_is_filled(make_spec, run_session, algorithm):
    """A column is a metric that the algorithm's `update` returns: a misspelt one stays empty."""
    own: dict[str, Any] = {"env__max_t": 3} if algorithm in ("SIL", "PPOSIL") else {}
    if "discrete" not in ALGORITHMS[algorithm].actions:
        own["env__name"] = "Pendulum-v1"
    last = train_table(run_session(make_spec(algorithm, **own), mode="train")).iloc[-1]
    columns = ALGORITHMS[algorithm].columns
    assert columns
    assert [column for column in (*columns, "grad_norm") if math.isnan(last[column])] == []


# Endings


def files(layout) -> set[str]:
    return {
        path.name for folder in ("info", "model") for path in (layout.predir / folder).iterdir()
    }


def test_a_session_told_to_stop_ends_whole_and_says_so(make_spec, run_session):
    whole, completed = files(run_session(make_spec())), [run_session.completed]
    layout = run_session(make_spec(), stop_after=60)
    assert [*completed, run_session.completed] == [True, False]
    assert files(layout) == whole
    assert train_table(layout)["frame"].tolist() == [50, 100]


@pytest.mark.parametrize("algorithm", OWN)
def test_a_reward_that_is_no_number_ends_the_session_and_marks_the_curve(
    make_spec, run_session, faulty, algorithm
):
    spec = make_spec(algorithm, env__name=faulty, env__fault="reward")
    with pytest.raises(DivergenceError, match="diverged by it at frame 128"):
        run_session(spec, mode="train")
    table = train_table(run_session.layout)
    assert table["frame"].tolist() == [50, 100, 128]
    assert math.isinf(table["loss"].iloc[-1])


def test_a_crash_leaves_what_was_learned_until_then(make_spec, run_session, faulty):
    with pytest.raises(RuntimeError, match="the pole broke"):
        run_session(make_spec(env__name=faulty, env__fault="raise"))
    assert train_table(run_session.layout)["frame"].tolist() == [50, 100]
    assert "tiny_t0_s0_net_model.pt" in files(run_session.layout)


def test_a_parameter_that_does_not_learn_is_named_in_dev(make_spec, run_session):
    said: list[Any] = []
    handler = logger.add(said.append, level="WARNING")
    run_session(make_spec(agent__net__optim_spec={"name": "Adam", "lr": 1e-30}), mode="dev")
    logger.remove(handler)
    assert any("did not move" in message for message in said)
