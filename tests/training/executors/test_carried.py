"""What a process has registered by an object, on its way to its sessions."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from slm_lab.training.executors.carried import NOTHING, carry, only_here

ENV = """
import gymnasium as gym

class Lonely(gym.Env):
    pass
"""


def test_an_env_whose_module_is_not_found_there_keeps_no_session_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_spec: Any
) -> None:
    (tmp_path / "lonely_env.py").write_text(ENV)
    monkeypatch.syspath_prepend(tmp_path)
    from lonely_env import Lonely  # type: ignore[import-not-found]

    gym.register("Lonely-v0", entry_point=Lonely)
    gym.register("Known-v0", entry_point=lambda **_: gym.make("CartPole-v1"))
    try:
        packed = pickle.dumps(carry(make_spec()))
        for name in ("Lonely-v0", "Known-v0"):
            del gym.registry[name]
        monkeypatch.delitem(sys.modules, "lonely_env")
        sys.path.remove(str(tmp_path))
        pickle.loads(packed)
        assert "Lonely-v0" not in gym.registry
        assert "Known-v0" in gym.registry
    finally:
        for name in ("Lonely-v0", "Known-v0"):
            gym.registry.pop(name, None)


def test_an_atari_game_is_known_to_every_process_also_once_this_one_has_registered_it(
    make_spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ale_py = pytest.importorskip("ale_py")
    # Without what other tests have registered, which is carried.
    theirs = [name for name, spec in gym.registry.items() if callable(spec.entry_point)]
    for name in theirs:
        monkeypatch.delitem(gym.registry, name)
    gym.register_envs(ale_py)
    game = make_spec().with_values({"env.name": "ALE/Pong-v5"})
    assert only_here(game) == ""
    assert carry(game) == NOTHING
