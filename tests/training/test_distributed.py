"""Workers that train one set of nets: turns at the shared state, and trials of such workers."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import make_agent
from slm_lab.agent.algorithm.replay_actor_critic import TargetUpdate
from slm_lab.agent.learning.learner import State
from slm_lab.analysis.tables import read_session
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.resume import unfinished_sessions
from slm_lab.spec import SpecError, load_spec, spec_from_dict
from slm_lab.training.checkpoint import read_checkpoint
from slm_lab.training.distributed import Exchange, SharedAlgorithm
from slm_lab.training.executors.local import SharedNets, concurrency, shared_nets, worker_spec
from slm_lab.training.options import RunOptions
from slm_lab.training.trial import run_sessions
from slm_lab.types import Spaces, Transition

A3C = "benchmark/a3c/a3c_gae_cartpole.yaml"


def small_state(weights: float, *, square: float = 0.0, target: float = 0.0) -> State:
    """A net of three weights, its target, one slot of its optimiser, a counter, a coefficient."""
    return {
        "net": torch.full((3,), weights),
        "net.slot.square": torch.full((3,), square),
        "net.buffer.count": torch.tensor(0),
        "target_net": torch.full((1,), target),
        "entropy_coef": torch.tensor(0.0),
    }


def join(shared: SharedNets, state: State, kept: float = 0.0) -> Exchange:
    """An exchange of that state; `kept` of the target before a turn is left after it."""
    return Exchange(shared, state, {"net"}, {"target_net"}, lambda: kept)


@pytest.fixture
def meeting(make_spec) -> Iterator[Any]:
    """meeting("synced") -> the shared nets of two workers."""
    opened = []

    def open_one(mode: str) -> SharedNets:
        context = shared_nets(make_spec(meta__distributed=mode, meta__max_session=2))
        opened.append(context)
        shared = context.__enter__()
        assert shared is not None
        return shared

    yield open_one
    for context in opened:
        context.__exit__(None, None, None)


def test_all_workers_start_from_the_nets_of_the_first(meeting):
    shared = meeting("synced")
    first, second = small_state(1.0), small_state(2.0)
    join(shared, first)
    join(shared, second)
    assert second["net"].tolist() == first["net"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("mode", ["synced", "shared"])
def test_what_one_worker_learned_the_next_learns_from(meeting, mode):
    shared = meeting(mode)
    mine, yours = small_state(0.0), small_state(0.0)
    my, your = join(shared, mine), join(shared, yours)
    with my.turn():
        mine["net"] += 1
        mine["net.buffer.count"] += 1
    with your.turn():
        assert yours["net"].tolist() == [1.0, 1.0, 1.0]
        yours["net"] += 2
        yours["net.buffer.count"] += 1
    with my.turn():
        assert mine["net"].tolist() == [3.0, 3.0, 3.0]
        assert mine["net.buffer.count"].item() == 2


def test_a_turn_that_fails_frees_the_nets_and_leaves_them_as_they_were(meeting):
    shared = meeting("synced")
    mine, yours = small_state(0.0), small_state(0.0)
    my, your = join(shared, mine), join(shared, yours)
    with pytest.raises(ZeroDivisionError), my.turn():
        mine["net"] += 1 / 0
    with your.turn():
        assert yours["net"].tolist() == [0.0, 0.0, 0.0]


def test_interleaved_updates_of_shared_weights_both_count(meeting):
    shared = meeting("shared")
    mine, yours = small_state(0.0, square=1.0), small_state(0.0, square=1.0)
    my, your = join(shared, mine), join(shared, yours)
    with my.turn():
        mine["net"] += 1
        mine["net.slot.square"].fill_(0.3)
        with your.turn():
            yours["net"] += 2
            yours["net.slot.square"].fill_(0.2)
    assert mine["net"].tolist() == [3.0, 3.0, 3.0]
    # Added up, the two changes would have made it negative.
    assert mine["net.slot.square"].tolist() == pytest.approx([0.3, 0.3, 0.3])


def test_interleaved_copies_of_a_net_leave_its_target_a_copy(meeting):
    """5 - 1 added twice to a target of 1 would make it 9."""
    shared = meeting("shared")
    mine, yours = small_state(5.0, target=1.0), small_state(5.0, target=1.0)
    my, your = join(shared, mine), join(shared, yours)
    with my.turn():
        mine["target_net"].fill_(5.0)
        with your.turn():
            yours["target_net"].fill_(5.0)
    assert mine["target_net"].item() == 5.0


def test_interleaved_steps_of_polyak_move_a_target_as_one_after_the_other(meeting):
    """From 0 half-way to 8 is 4, and half-way again is 6; added up they would be 8."""
    shared = meeting("shared")
    mine, yours = small_state(8.0), small_state(8.0)
    my, your = join(shared, mine, kept=0.5), join(shared, yours, kept=0.5)
    with my.turn():
        mine["target_net"].fill_(4.0)
        with your.turn():
            yours["target_net"].fill_(4.0)
    assert mine["target_net"].item() == 6.0


def test_what_a_turn_leaves_alone_is_not_taken_back_from_another_worker(meeting):
    shared = meeting("shared")
    mine, yours = small_state(5.0, target=1.0), small_state(5.0, target=1.0)
    my, your = join(shared, mine, kept=1.0), join(shared, yours)
    with my.turn(), your.turn():
        yours["target_net"].fill_(5.0)
        yours["entropy_coef"].fill_(0.25)
    assert (mine["target_net"].item(), mine["entropy_coef"].item()) == (5.0, 0.25)


def test_a_coefficient_without_a_net_is_set_and_never_added_up(meeting):
    shared = meeting("shared")
    mine, yours = small_state(0.0), small_state(0.0)
    my, your = join(shared, mine), join(shared, yours)
    with my.turn():
        mine["entropy_coef"].fill_(0.5)
        with your.turn():
            yours["entropy_coef"].fill_(0.5)
    assert mine["entropy_coef"].item() == 0.5


@pytest.mark.parametrize(
    ("algorithm", "net", "trained", "targets"),
    [
        ("DQN", {"update_type": "replace"}, {"net"}, {"target_net"}),
        (
            "SoftActorCritic",
            {"update_type": "polyak"},
            {"net", "q1_net", "q2_net", "log_alpha"},
            {"target_q1_net", "target_q2_net"},
        ),
        ("PPO", {}, {"net", "critic_net"}, set()),
    ],
)
def test_what_an_optimiser_trains_adds_up_and_targets_are_known(
    make_spec, meeting, algorithm, net, trained, targets
):
    spec = make_spec(algorithm, **{f"agent__net__{key}": value for key, value in net.items()})
    agent = make_agent(spec, Spaces((1,), "float32", "discrete", (2,)), seed=0)
    exchange = SharedAlgorithm(agent.algorithm, meeting("shared"))._exchange
    assert (set(exchange._trained), set(exchange._targets)) == (trained, targets)
    assert {f"{name}.lr" for name in trained} <= agent.algorithm.learner.state.keys()


def test_a_copy_keeps_nothing_of_a_target_and_polyak_its_share(make_spec):
    keys = {"agent__net__update_type": "replace", "agent__net__update_frequency": 10}
    net = make_spec("DQN", **keys).agent.net
    state = {"net": torch.ones(1), "target_net": torch.zeros(1)}
    copies = TargetUpdate(net, env_steps_per_gradient_step=1.0)
    copies.copy_if_due(state, {"target_net": "net"}, frame=8)
    assert copies.kept(steps=2) == 1.0
    copies.copy_if_due(state, {"target_net": "net"}, frame=12)
    assert copies.kept(steps=2) == 0.0
    keys = {"agent__net__update_type": "polyak", "agent__net__polyak_coef": 0.5}
    net = make_spec("DQN", **keys).agent.net
    assert TargetUpdate(net, env_steps_per_gradient_step=1.0).kept(steps=2) == 0.25


# Workers that die


class Endless(dict[str, torch.Tensor]):
    """A state of which, once `on_second` is set, nobody sees more than the first entry."""

    on_second: Callable[[], None] | None = None

    def items(self) -> Any:
        for i, entry in enumerate(super().items()):
            if i == 1 and self.on_second is not None:
                self.on_second()
            yield entry


def start_worker(shared: SharedNets, where: str) -> int:
    """A process that learns 7 and stops for good in its turn, or half-way through giving.

    Returns its id once it is there, with the lock in its hands.
    """
    is_there, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            stop_for_good(shared, where, tell)
        finally:
            os._exit(1)
    os.close(tell)
    assert os.read(is_there, 1) == b"!"
    os.close(is_there)
    return child


def stop_for_good(shared: SharedNets, where: str, tell: int) -> None:
    mine, original = Endless(small_state(7.0)), Exchange._give

    def stop() -> None:
        os.write(tell, b"!")
        signal.pause()

    def give_half(self: Exchange) -> None:
        mine.on_second = stop
        original(self)

    if where == "giving first":
        Exchange._give = give_half  # type: ignore[method-assign]
    exchange = join(shared, mine)
    Exchange._give = give_half  # type: ignore[method-assign]
    with exchange.turn():
        mine["net"].fill_(7.0)
        mine["entropy_coef"].fill_(7.0)
        if where == "its turn":
            stop()


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_the_file_of_the_nets_has_no_name_that_a_kill_could_leave_behind(make_spec):
    with shared_nets(make_spec(meta__distributed="synced", meta__max_session=2)) as shared:
        assert shared is not None
        assert os.fstat(shared.descriptor).st_nlink == 0
    for alone in ({}, {"meta__distributed": "synced"}):
        with shared_nets(make_spec(**alone)) as shared:
            assert shared is None


@pytest.mark.parametrize("where", ["its turn", "giving"])
def test_a_worker_that_is_killed_with_the_lock_holds_up_nobody(meeting, where):
    """It has learned 7 and dies before or while it gives that: the others keep the 1 of before."""
    shared = meeting("synced")
    mine = small_state(0.0)
    my = join(shared, mine)
    with my.turn():
        mine["net"].fill_(1.0)
    worker = start_worker(shared, where)
    with pytest.raises(BlockingIOError):  # others wait for it while it lives
        fcntl.lockf(shared.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    kill(worker)
    with my.turn():
        assert mine["net"].tolist() == [1.0, 1.0, 1.0]
        assert mine["entropy_coef"].item() == 0.0
        mine["net"].fill_(2.0)
    late = small_state(0.0)
    join(shared, late)
    assert late["net"].tolist() == [2.0, 2.0, 2.0]


def test_a_first_worker_that_dies_while_it_gives_the_nets_leaves_that_to_the_next(meeting):
    shared = meeting("synced")
    kill(start_worker(shared, "giving first"))
    mine = small_state(3.0)
    join(shared, mine)
    assert mine["net"].tolist() == [3.0, 3.0, 3.0]


def test_a_worker_has_its_part_of_the_frames_and_whole_schedules():
    spec = load_spec(A3C)
    part = worker_spec(spec.with_values({"env.max_frame": 200_001}))
    assert part.env.max_frame == 100_001
    assert part.agent.net.lr_scheduler_spec == spec.agent.net.lr_scheduler_spec
    tree = {
        "agent": {"algorithm": {"name": "DQN"}},
        "env": {"name": "CartPole-v1", "max_frame": 20_000},
        "meta": {"distributed": "synced", "max_session": 2},
    }
    explored: Any = worker_spec(spec_from_dict(tree)).agent.algorithm
    assert explored.explore_var_spec.end_step == 4000


def test_all_workers_run_at_once_even_on_few_cores(make_spec, monkeypatch):
    monkeypatch.setattr("slm_lab.training.executors.local.available_cores", lambda: 1)
    assert concurrency(make_spec(meta__distributed="shared", meta__max_session=3)) == 3


def test_schedules_count_the_frames_of_all_workers(make_spec, meeting):
    decay = {"name": "linear_decay", "start_val": 1.0, "end_val": 0.0, "end_step": 100}
    spec = make_spec(
        "ActorCritic",
        agent__algorithm__entropy_coef_spec=decay,
        agent__net__optim_spec__lr=0.01,
        agent__net__lr_scheduler_spec={"name": "LinearToZero", "frame": 100},
    )
    agent = make_agent(spec, Spaces((1,), "float32", "discrete", (2,)), seed=0)
    agent.algorithm = SharedAlgorithm(agent.algorithm, meeting("synced"))

    def update(frame: int) -> Mapping[str, float]:
        obs = np.zeros((2, 1), np.float32)
        nothing, never = np.zeros(2, np.float32), np.zeros(2, bool)
        while not agent.ready:
            agent.observe(obs, agent.act(obs), Transition(obs, obs, nothing, never, never, never))
        return agent.update(frame).values

    # 25 frames here and about as many at the other worker: half-way down.
    assert update(25)["entropy_coef"] == pytest.approx(0.5)
    # A learning rate falls from the first update on: 50 of 100 frames since then.
    assert update(50)["lr"] == pytest.approx(0.005)


def test_a_value_scale_of_each_worker_is_refused(make_spec):
    with pytest.raises(SpecError, match="normalize_v_targets"):
        make_spec(agent__algorithm__normalize_v_targets=True, meta__distributed="shared")


@pytest.mark.parametrize("mode", ["synced", "shared"])
@pytest.mark.slow
def test_each_of_two_workers_plays_half_of_the_frames(make_spec, tmp_path, mode):
    spec = make_spec(meta__distributed=mode, meta__max_session=2, env__max_frame=8000)
    layout = RunLayout.create(spec.name, "now", tmp_path)
    end = run_sessions(spec, layout, 0, RunOptions(mode="train"))
    assert end.failed == {}
    frames = [read_session(layout.session_csv(0, s, "train"))["frame"].iloc[-1] for s in (0, 1)]
    assert frames == [4000, 4000]


@pytest.mark.slow
def test_the_others_finish_without_a_worker_that_died_and_a_resume_goes_on_with_their_nets(
    make_spec, faulty, env_seed, tmp_path
):
    spec = make_spec(
        meta__distributed="synced", meta__max_session=2, env__name=faulty, env__max_frame=2000
    )
    victims = {str(env_seed(worker_spec(spec), 1)): "SIGKILL"}
    layout = RunLayout.create(spec.name, "now", tmp_path)
    options = RunOptions(mode="train")
    end = run_sessions(spec.with_values({"env.victims": victims}), layout, 0, options)
    assert end.failed == {1: "its process died with exit code -9 (SIGKILL)"}
    assert unfinished_sessions(spec, layout, 0) == [1]

    resume = RunOptions(mode="train", resume=True)
    # Only the env is mended, which the spec's fingerprint would not overlook.
    shutil.rmtree(layout.checkpoint_dir(0, 1) / "last", ignore_errors=True)
    end = run_sessions(spec.with_values({"env.victims": {}}), layout, 0, resume)
    assert end.failed == {}
    nets = []
    for session in (0, 1):
        folder = layout.checkpoint_dir(0, session) / "last"
        manifest, state = read_checkpoint(folder, max_bytes=10**8)
        assert (manifest.finished, manifest.frame) == (True, 1000)
        nets.append(state["agent"]["algorithm"])
    updates = 1000 // 32  # of each worker: 16 steps of two envs
    assert nets[0]["turns"] < nets[1]["turns"]
    assert nets[1]["turns"] == nets[0]["turns"] + updates


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.asynchronous
def test_a3c_with_two_workers_solves_cartpole(tmp_path):
    spec = load_spec(A3C).with_values({"meta.random_seed": 1, "meta.compile": "off"})
    layout = RunLayout.create(spec.name, "now", tmp_path)
    assert run_sessions(spec, layout, 0, RunOptions(mode="train")).failed == {}
    for session in (0, 1):
        curve = read_session(layout.session_csv(0, session, "train"))
        assert curve["total_reward"].iloc[-1] > 400  # of the last hundred episodes
