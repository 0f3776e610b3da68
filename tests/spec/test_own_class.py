"""An algorithm, memory or net of the user's own, named as `module:Class`, in a spec."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slm_lab.analysis.style import GREY, line_styles
from slm_lab.spec import Spec, SpecError, check_file, load_spec, spec_from_dict
from slm_lab.spec.algorithm import ALGORITHMS, algorithm_label
from slm_lab.spec.trust import named_modules

MINE = """
from slm_lab.extend import (
    AlgorithmInfo, AlgorithmSpec, Count, Defaults, Key, MemoryInfo, MLPNetSpec, OffPolicySpec,
    ReplaySpec, mlp, replay,
)
from slm_lab.agent.algorithm.ppo import PPO

open("imported", "a").close()


class MineSpec(OffPolicySpec):
    width: Count = Key(3, "How wide it is.")


class Mine:
    record = AlgorithmInfo(
        "Mine",
        MineSpec,
        memories=frozenset({"replay"}),
        recurrent=False,
        defaults=Defaults(replay(8, 100), mlp([4], "relu", 1e-3)),
    )


class MyPPO(PPO):
    pass


class DQN(Mine):
    pass


class MyReplaySpec(ReplaySpec):
    share: Count = Key(2, "A share.")


class MyReplay:
    record = MemoryInfo("MyReplay", MyReplaySpec, kind="replay")


class MyNetSpec(MLPNetSpec):
    blocks: Count = Key(2, "Residual blocks.")


class MyNet:
    spec_class = MyNetSpec


class WrongSpec:
    spec_class = dict


class Silent:
    pass


class Pointless:
    record = AlgorithmInfo("", AlgorithmSpec, memories=frozenset({"replay"}))
"""
RUN = "data/mine_2026_01_31_235959"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with `mine.py`; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "mine.py").write_text(MINE)
    before = set(sys.modules)
    yield tmp_path
    for name in sys.modules.keys() - before:
        if getattr(sys.modules[name], "__file__", None) in [
            str(path) for path in tmp_path.glob("*.py")
        ]:
            del sys.modules[name]


def tree(algorithm: dict[str, Any] | None = None, **agent: Any) -> dict[str, Any]:
    env = {"name": "Pendulum-v1", "max_frame": 5000}
    return {"agent": {"algorithm": algorithm or {"name": "mine:Mine"}, **agent}, "env": env}


def built(algorithm: dict[str, Any] | None = None, **agent: Any) -> Spec:
    return spec_from_dict(tree(algorithm, **agent), "mine")


def refusal(algorithm: dict[str, Any] | None = None, **agent: Any) -> str:
    with pytest.raises(SpecError) as error:
        built(algorithm, **agent)
    return str(error.value)


def saved(spec: dict[str, Any]) -> Path:
    """A run folder with this spec, as it might have been pulled."""
    folder = Path(RUN)
    (folder / "info").mkdir(parents=True)
    path = folder / "mine_t0_spec.json"
    path.write_text(json.dumps({"name": "mine", **spec}))
    return path


# What a class says of itself


def test_a_class_brings_its_keys_its_defaults_and_its_record():
    spec = built()
    algorithm: Any = spec.agent.algorithm
    assert algorithm.width == 3
    assert spec.resolved()["agent"]["algorithm"]["width"] == 3
    assert (spec.agent.memory.name, spec.agent.memory.batch_size) == ("Replay", 8)
    assert spec.agent.net.model_dump()["hid_layers"] == (4,)
    assert spec.agent.algorithm_info.implementation == "mine:Mine"
    assert algorithm.pace(spec).frames == 1


def test_its_keys_are_refused_with_the_same_words_as_those_of_ours():
    message = refusal({"name": "mine:Mine", "widht": 3})
    assert "agent.algorithm.widht: unknown key for mine:Mine. Did you mean `width`?" in message
    message = refusal({"name": "mine:Mine", "width": -1})
    assert "agent.algorithm.width: found -1; expected" in message
    assert "(How wide it is)" in message


def test_its_keys_are_searched_and_set_like_those_of_ours():
    plain = tree() | {"search": {"agent.algorithm.width__choice": [1, 2]}}
    plain["agent"]["algorithm"]["width"] = 3
    spec = spec_from_dict(plain, "mine").with_values({"agent.algorithm.width": 2})
    assert spec.agent.algorithm.model_dump()["width"] == 2
    with pytest.raises(SpecError, match="width: found 0"):
        spec.with_values({"agent.algorithm.width": 0})


def test_what_it_cannot_do_is_refused_by_its_own_record():
    message = refusal(net={"type": "RecurrentNet"})
    assert "agent.net.type: does not go with agent.algorithm.name: mine:Mine" in message
    assert "learns from Pri" in refusal(memory={"name": "OnPolicyReplay"})


def test_a_subclass_of_one_of_ours_has_its_record_and_keys():
    spec = built({"name": "mine:MyPPO", "time_horizon": 64})
    assert spec.agent.algorithm_info.critic == "keys"
    assert spec.agent.memory.name == "OnPolicyBatchReplay"
    assert "Did you mean `clip_vloss`" in refusal({"name": "mine:MyPPO", "clip_vlos": True})


@pytest.mark.parametrize("name", ["DQN", "TD3", "SoftActorCritic", "C51"])
def test_a_class_of_ours_that_makes_several_algorithms_is_the_base_by_its_own_name(here, name):
    record = ALGORITHMS[name]
    module, _, _ = record.implementation.partition(":")
    (here / "derived.py").write_text(f"from {module} import {name} as Base\nclass Mine(Base): ...")
    bounds = {"v_min": 0, "v_max": 1} if name == "C51" else {}
    spec = built({"name": "derived:Mine", **bounds})
    assert type(spec.agent.algorithm) is record.spec_class
    assert spec.agent.algorithm_info.target_net == record.target_net


def test_memories_and_nets_bring_their_keys_too():
    spec = built(
        memory={"name": "mine:MyReplay", "share": 5}, net={"type": "mine:MyNet", "blocks": 4}
    )
    assert spec.agent.memory_info.kind == "replay"
    assert spec.agent.memory.batch_size == 8, "the algorithm's, as for any replay"
    assert spec.agent.memory.model_dump()["share"] == 5
    assert spec.agent.net.model_dump()["blocks"] == 4
    message = refusal(memory={"name": "mine:MyReplay", "shar": 5}, net={"type": "mine:MyNet"})
    assert "agent.memory.shar: unknown key for mine:MyReplay. Did you mean `share`?" in message


def test_a_memory_says_itself_whether_it_gives_the_sequences_of_a_recurrent_net():
    agent: dict[str, Any] = {
        "memory": {"name": "mine:MyReplay", "batch_size": 32},
        "net": {"type": "RecurrentNet", "seq_len": 4},
    }
    message = refusal({"name": "DQN"}, **agent)
    assert "agent.memory.name: mine:MyReplay draws single transitions" in message
    built({"name": "DQN"}, **{**agent, "memory": {"name": "Replay", "batch_size": 32}})


def test_actor_and_critic_may_have_classes_of_their_own():
    net = {"type": "MLPNet", "critic_type": "mine:MyNet", "critic_blocks": 5}
    spec = built({"name": "PPO"}, net=net)
    assert spec.agent.net.type == "MLPNet"
    assert spec.agent.critic.model_dump()["blocks"] == 5
    assert named_modules(spec) == {"mine": "agent.net.critic_type"}


# What is wrong is said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine:Min", "`mine` has no `Min`. Did you mean `Mine`"),
        ("minn:Mine", "cannot import `minn` of `minn:Mine`"),
        ("mine:Silent", "`mine:Silent` does not say what it is. Expected a class attribute"),
        ("a b:Mine", "expected a module"),
        (":Mine", "expected a module"),
        ("broken:Mine", "importing `broken` failed: NameError: name 'nothing' is not defined"),
        ("unread:Mine", "importing `unread` failed: SyntaxError"),
    ],
)
def test_a_name_that_leads_nowhere_is_an_error_of_its_key(here, name, said):
    (here / "broken.py").write_text("\nnothing\n")
    (here / "unread.py").write_text("\nclass\n")
    for message in (
        refusal({"name": name}),
        refusal(net={"type": name}),
        refusal(memory={"name": name}),
    ):
        assert said in message
        assert "agent." in message


def test_the_line_of_a_module_that_fails_is_named(here):
    (here / "broken.py").write_text("\nnothing\n")
    assert f"{here / 'broken.py'}, line 2" in refusal({"name": "broken:Mine"})


def test_a_spec_class_must_be_one():
    assert "expected a NetSpec" in refusal(net={"type": "mine:WrongSpec"})


def test_an_algorithm_must_know_its_pace():
    message = refusal({"name": "mine:Pointless"})
    assert "agent.algorithm.name: the spec class of `mine:Pointless` has no pace" in message


# Labels


def test_the_label_is_the_name_of_the_class_and_never_that_of_one_of_ours():
    assert built().agent.label == "Mine"
    assert algorithm_label("mine:DQN") == "mine:DQN"
    assert algorithm_label("mine:DDQN") == "mine:DDQN"
    assert [style.color for style in line_styles(["Mine"])] == [GREY]


# A spec from elsewhere


def test_reading_a_spec_of_a_run_folder_runs_nothing_and_checks_no_key():
    given = tree(
        {"name": "mine:Mine", "width": "wide", "gamma": "any"},
        memory={"name": "mine:MyReplay", "max_size": "x"},
        net={"type": "mine:MyNet", "optim_spec": 3, "blocks": None},
    )
    spec = load_spec(saved(given))
    assert not Path("imported").exists()
    assert spec.agent.label == "Mine"
    assert spec.to_dict()["agent"]["algorithm"]["width"] == "wide"
    assert spec.model_dump(mode="json")["agent"]["net"]["blocks"] is None
    assert spec.with_values({"env.max_frame": 10}).env.max_frame == 10
    assert not Path("imported").exists()


def test_a_trusted_module_is_imported_and_its_keys_are_checked():
    path = saved(tree({"name": "mine:Mine", "widht": 3}))
    load_spec(path)
    with pytest.raises(SpecError, match="unknown key for mine:Mine"):
        load_spec(path, trust=("mine",))


def test_the_flag_that_names_a_module_trusts_it():
    path = saved(tree({"name": "DQN"}))
    spec = load_spec(path, sets=["agent.algorithm={name: mine:Mine, width: 7}"])
    assert spec.agent.algorithm.model_dump()["width"] == 7
    assert spec.origin is not None
    assert spec.origin.trusted == {"mine"}


def test_checking_a_file_of_a_run_folder_imports_nothing():
    assert check_file(saved(tree()))[0].ok
    assert not Path("imported").exists()


def test_no_class_is_taken_from_a_run_folder_whoever_asks():
    folder = saved(tree()).parent
    (folder / "evil.py").write_text("open('imported', 'a').close()")
    assert "no code is ever imported from there" in refusal(
        {"name": f"{RUN.replace('/', '.')}.evil:Mine"}
    )
    assert not Path("imported").exists()


def test_every_key_that_may_name_a_module_is_looked_at():
    given = tree(
        {"name": "a:A", "action_pdtype": "b:B", "explore_var_spec": {"name": "c:C"}},
        memory={"name": "d:D"},
        net={
            "type": "e:E",
            "optim_spec": {"name": "f:F"},
            "actor_lr_scheduler_spec": {"name": "g:G"},
            "loss_spec": {"name": "h:H"},
        },
        critic_net={"type": "i:I"},
    )
    given["env"]["name"] = "j:J-v0"
    given["search"] = {
        "agent.net.type__choice": ["MLPNet", "k:K"],
        "agent": {"memory__choice": [{"name": "l:L"}]},
    }
    spec = load_spec(saved(given))
    assert "".join(sorted(named_modules(spec))) == "abcdefghijkl"


# Other processes


def test_a_spec_is_unpickled_by_a_process_that_has_not_imported_the_module(here):
    Path("spec.pickle").write_bytes(pickle.dumps(built({"name": "mine:Mine", "width": 4})))
    code = "import pickle; print(pickle.load(open('spec.pickle', 'rb')).agent.algorithm.width)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "4", done.stderr


def test_a_copy_by_pickle_or_plain_data_is_the_same_spec():
    spec = built({"name": "mine:Mine", "width": 4}, net={"type": "mine:MyNet"})
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec_from_dict(copy.deepcopy(spec.to_dict()), "mine") == spec
