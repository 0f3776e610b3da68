"""Atari games through ale-py: what is seen, what is scored, and how a game and a life end."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from slm_lab.env import EnvError, VectorEnv, make_env
from slm_lab.env.check import RandomBaseline, measure_random_policy, random_rollout
from slm_lab.env.registry import render_fps
from slm_lab.spec.env import EnvSpec
from slm_lab.types import Transition


def atari(game: str = "Pong", *, num_envs: int = 2, seed: int = 0, **keys: Any) -> VectorEnv:
    tree = {"name": f"ALE/{game}-v5", "num_envs": num_envs, "max_frame": 1000, **keys}
    return make_env(EnvSpec.model_validate(tree), seed=seed)


def play(env: VectorEnv, steps: int) -> list[tuple[np.ndarray, Transition]]:
    """Random actions; (what was acted on, what came of it) for every step, copied."""
    env.reset()
    rows = []
    for _ in range(steps):
        obs = np.array(env.obs)
        step = env.step(env.sample_action())
        rows.append((obs, step))  # ale-py hands out new arrays, which stay what they are
    return rows


def frames(env: VectorEnv, steps: int = 60) -> np.ndarray:
    return np.stack([step.obs for _, step in play(env, steps)])


class TestWhatIsSeen:
    def test_four_grey_frames_as_bytes_channels_first(self):
        env = atari(num_envs=3)
        obs = env.reset()
        assert env.backend == "ale"
        assert obs.shape == (3, 4, 84, 84)
        assert obs.dtype == np.uint8
        assert env.spaces.obs_shape == (4, 84, 84)
        assert env.spaces.obs_dtype == "uint8"
        assert env.spaces.frame_stack == 4
        assert (env.spaces.action_type, env.spaces.action_sizes) == ("discrete", (6,))

    def test_each_observation_is_the_one_before_moved_on_by_a_frame(self):
        for obs, step in play(atari(), 20):
            assert np.array_equal(step.next_obs[:, :-1], obs[:, 1:])

    def test_the_stack_is_as_deep_as_the_spec_asks(self):
        env = atari(frame_stack=2)
        assert env.reset().shape == (2, 2, 84, 84)
        assert env.spaces.frame_stack == 2

    def test_what_was_acted_on_survives_the_next_step(self):
        env = atari()
        obs = env.reset()
        before = np.array(obs)
        env.step(env.sample_action())
        assert np.array_equal(obs, before)

    def test_all_eighteen_actions_on_request(self):
        assert atari(full_action_space=True).spaces.action_sizes == (18,)


class TestChance:
    def test_the_same_seed_gives_the_same_games(self):
        assert np.array_equal(frames(atari(seed=3)), frames(atari(seed=3)))

    def test_copies_of_a_game_differ_by_their_no_op_starts(self):
        first, *others = frames(atari(num_envs=4, seed=3), 5).swapaxes(0, 1)
        assert any(not np.array_equal(first, other) for other in others)

    def test_actions_stick_with_probability_a_quarter_unless_told_otherwise(self):
        default = frames(atari())
        assert np.array_equal(default, frames(atari(repeat_action_probability=0.25)))
        assert not np.array_equal(default, frames(atari(repeat_action_probability=0.0)))

    def test_an_action_that_always_sticks_never_changes(self):
        def by_actions(actions: np.ndarray, sticky: float) -> np.ndarray:
            env = atari(num_envs=1, repeat_action_probability=sticky)
            env.reset()
            return np.stack([env.step(action[None]).obs for action in actions])

        up, down = np.full(30, 2), np.full(30, 3)
        assert np.array_equal(by_actions(up, 1.0), by_actions(down, 1.0))
        assert not np.array_equal(by_actions(up, 0.0), by_actions(down, 0.0))


class TestRewards:
    def test_they_are_raw_and_so_are_scores(self):
        """An invader is worth 5 to 30."""
        env = atari("SpaceInvaders", max_t=150)
        rewards = np.stack([step.reward for _, step in play(env, 150)])
        assert rewards.dtype == np.float32
        assert rewards.max() >= 5
        assert list(env.episodes.returns) == rewards.sum(0).tolist()

    def test_learning_sees_them_clipped_to_one_unless_told_otherwise(self):
        def clip(**keys: Any) -> object:
            tree = {"name": "ALE/Pong-v5", "max_frame": 1, **keys}
            return EnvSpec.model_validate(tree).clip_reward

        assert clip() == (-1.0, 1.0)
        assert clip(clip_reward=5) == (-5, 5)
        assert clip(clip_reward=None) is None
        assert EnvSpec.model_validate({"name": "CartPole-v1", "max_frame": 1}).clip_reward is None


class TestEndings:
    def test_a_time_limit_counts_decisions_and_truncates(self):
        env = atari(max_t=20)
        rows = play(env, 40)
        ends = [step.truncated.tolist() for _, step in rows]
        assert ends == ([[False] * 2] * 19 + [[True] * 2]) * 2
        assert not any(step.terminated.any() for _, step in rows)
        assert list(env.episodes.lengths) == [20] * 4

    def test_the_successor_is_the_last_frame_and_the_next_stack_a_new_game(self):
        obs, step = play(atari(max_t=20), 20)[-1]
        assert np.array_equal(step.next_obs[:, :-1], obs[:, 1:])
        assert not step.obs[:, :3].any()  # ale-py begins a game with one frame, the others blank
        assert np.asarray(step.obs)[:, 3].any(axis=(1, 2)).all()

    def test_only_the_env_whose_game_ended_starts_anew(self):
        for obs, step in play(atari("Breakout"), 250):
            over = step.terminated
            going_on = ~over
            assert np.array_equal(step.next_obs[:, :-1], obs[:, 1:])
            assert np.array_equal(step.obs[going_on], step.next_obs[going_on])
            assert not step.obs[over][:, :3].any()
            if over.any() and going_on.any():
                return
        pytest.fail("no game ended alone")


class TestLives:
    def test_a_lost_life_terminates_for_learning_while_the_game_and_its_score_go_on(self):
        env = atari("Breakout", num_envs=1, life_loss_info=True)
        rows = play(env, 260)
        lives_lost = [t for t, (_, step) in enumerate(rows) if step.terminated[0]]
        assert env.episodes.count == 1
        assert len(lives_lost) >= 5  # Breakout has five lives

        game_over = lives_lost[4]
        assert list(env.episodes.lengths) == [game_over + 1]
        assert list(env.episodes.returns) == [
            sum(float(step.reward[0]) for _, step in rows[: game_over + 1])
        ]
        for t in lives_lost[:4]:
            _, step = rows[t]
            assert np.array_equal(step.obs, step.next_obs)
            assert step.obs[:, 0].any()  # the stack goes on over the lost life
        _, step = rows[game_over]
        assert not np.array_equal(step.obs, step.next_obs)

    def test_without_it_only_the_game_over_terminates(self):
        env = atari("Breakout", num_envs=1)
        endings = sum(int(step.terminated[0]) for _, step in play(env, 260))
        assert endings == env.episodes.count == 1

    def test_an_episode_ends_with_the_game_and_not_with_a_life(self):
        env = atari("Breakout", num_envs=2, life_loss_info=True)
        rows = play(env, 260)
        games = sum(int(step.episode_end.sum()) for _, step in rows)
        lives = sum(int(step.terminated.sum()) for _, step in rows)
        assert games == env.episodes.count > 0
        assert lives >= 5 * games  # Breakout has five lives

    def test_a_random_policy_scores_whole_games(self):
        """Which steps are flagged changes nothing of the game: the same actions, the same score."""

        def score(**keys: Any) -> RandomBaseline | None:
            tree = {"name": "ALE/Breakout-v5", "max_frame": 1, **keys}
            return measure_random_policy(EnvSpec.model_validate(tree), episodes=2)

        assert score(life_loss_info=True) == score()

    def test_a_check_that_saw_lost_lives_only_saw_no_episode(self):
        env = atari("Breakout", num_envs=1, life_loss_info=True)
        _, _, problems, _ = random_rollout(env, 100)
        assert env.episodes.count == 0
        assert any("episodes: none ended" in problem for problem in problems)

    def test_pictures_can_be_paced_whatever_the_games_are_made_with(self):
        spec = EnvSpec.model_validate(
            {"name": "ALE/Breakout-v5", "max_frame": 1, "life_loss_info": True}
        )
        assert render_fps(spec) == 30

    def test_every_game_without_lives_is_scored_on_its_own(self):
        """Pong counts no lives: nothing but the end of a game may close its sum of points."""
        env = atari(num_envs=2, life_loss_info=True, max_t=150)
        rewards = np.stack([step.reward for _, step in play(env, 450)])
        by_game = rewards.reshape(3, 150, 2).sum(1)
        assert (by_game < 0).all()
        assert list(env.episodes.returns) == by_game.ravel().tolist()


class TestWhatItCannotDo:
    def test_running_games_are_lost_on_resume_and_finished_ones_kept(self):
        env, resumed = atari(max_t=10), atari(max_t=10)
        play(env, 15)
        assert not env.restorable
        resumed.load_state_dict(env.state_dict())
        assert list(resumed.episodes.lengths) == [10, 10]
        assert resumed.episodes.running_length() == 0
        assert np.array_equal(resumed.sample_action(), env.sample_action())
        resumed.step(resumed.sample_action())

    def test_a_key_that_would_change_scores_is_refused_with_what_to_use(self):
        with pytest.raises(EnvError, match=r"env\.episodic_life.*life_loss_info"):
            atari(episodic_life=True)
        with pytest.raises(EnvError, match=r"env\.reward_clipping.*clip_reward"):
            atari(reward_clipping=True)

    def test_a_key_it_does_not_know_is_named(self):
        with pytest.raises(EnvError, match=r"env\.kwargs.*difficulti"):
            atari(difficulti=1)

    def test_an_unknown_game_names_its_neighbours(self):
        with pytest.raises(EnvError, match="ALE/Pong-v5"):
            atari("Ponk")

    def test_the_back_end_plays_nothing_else(self):
        tree = {"name": "CartPole-v1", "max_frame": 1, "backend": "ale"}
        with pytest.raises(EnvError, match=r"env\.backend.*ALE/Pong-v5"):
            make_env(EnvSpec.model_validate(tree), seed=0)

    def test_without_ale_py_the_extra_is_named(self, monkeypatch):
        for name in ("ale_py", "ale_py.vector_env"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(EnvError, match=r"slm-lab\[atari\]"):
            atari()


def test_a_picture_shows_the_newest_frame_of_every_env():
    spec = EnvSpec.model_validate({"name": "ALE/Pong-v5", "num_envs": 2, "max_frame": 1})
    env = make_env(spec, seed=0, render=True)
    obs = env.reset()
    picture = env.render()
    assert picture is not None
    assert picture.shape == (252, 504, 3)
    assert np.array_equal(picture[::3, :252:3, 0], obs[0, -1])
    assert atari().render() is None
