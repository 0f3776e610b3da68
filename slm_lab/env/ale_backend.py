"""The Atari back-end: ale-py's own C++ envs, stepped as one batch.

Every `ALE/...-v5` game has these settings, unless `env.kwargs` says otherwise: sticky actions 0.25,
one decision per 4 emulator frames, the brighter of the last two of them, grey 84x84, the last 4
stacked as uint8 (4, 84, 84), up to 30 no-ops and a fire at the start of a game.

Rewards stay raw: the agent applies `env.clip_reward`, and scores are never clipped. With
`life_loss_info` a lost life is `terminated` while the game goes on; `episode_end` and the score
come at the end of the game.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from slm_lab.env.error import EnvError
from slm_lab.env.registry import find_registered
from slm_lab.env.space import action_codec, obs_codec
from slm_lab.env.vector import VectorEnv, check_batch, grid
from slm_lab.spec.env import EnvSpec
from slm_lab.types import Rows, Transition, on_host

if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv

# Keys of ale-py that the contract of the batched env rules out, and what to use instead.
_NOT_HERE = {
    "autoreset_mode": "nothing: endings are resolved within the step",
    "batch_size": "env.num_envs",
    "episodic_life": "life_loss_info, which keeps the score that of a whole game",
    "grayscale": "nothing: nets read grey frames",
    "max_num_frames_per_episode": "env.max_t, which counts decisions",
    "num_threads": "env.num_threads",
    "reward_clipping": "env.clip_reward, which leaves scores alone",
    "stack_num": "env.frame_stack",
}

_PIXEL = 3  # side of a frame's pixel in a rendered picture


def make_atari(spec: EnvSpec, *, seed: int, render: bool = False) -> AtariEnv:
    if not spec.name.startswith("ALE/"):
        raise EnvError(
            f"env.backend: `ale` plays Atari games only, found env.name `{spec.name}`. "
            "Expected an id such as `ALE/Pong-v5`. Set env.backend to `auto`."
        )
    for key in spec.kwargs:
        if key in _NOT_HERE:
            raise EnvError(f"env.{key}: ale-py's key, not used here. Use {_NOT_HERE[key]}.")
    # The class has other defaults than the id: no sticky actions, and rewards clipped in the env.
    options = {**find_registered(spec).kwargs, **spec.kwargs}
    if spec.max_t is not None:
        options["max_num_frames_per_episode"] = spec.max_t * options["frameskip"]
    from ale_py.vector_env import AtariVectorEnv

    try:
        games = AtariVectorEnv(
            num_envs=spec.num_envs,
            num_threads=spec.num_threads or 0,
            stack_num=spec.frame_stack if spec.frame_stack > 1 else 4,
            autoreset_mode="SameStep",
            reward_clipping=False,
            **options,
        )
    except TypeError as error:
        raise EnvError(
            f"env.kwargs: ale-py cannot make {options['game']} with {dict(spec.kwargs)}: {error}. "
            "Remove what its vector env does not know, or set env.backend to `gymnasium`."
        ) from error
    return AtariEnv(games, seed=seed, render=render)


class AtariEnv(VectorEnv):
    """A VectorEnv over ale-py's batch; a resumed run begins new games, as none can be saved."""

    backend = "ale"
    obs: np.ndarray

    def __init__(self, games: AtariVectorEnv, *, seed: int, render: bool = False) -> None:
        self._games = games
        self._renders = render
        obs = obs_codec(games.single_observation_space)
        action = action_codec(games.single_action_space)
        super().__init__(games.num_envs, obs, action, seed, frame_stack=obs.shape[0])
        self._started = False
        self.obs = self._blank_obs()  # ale-py returns new arrays at every step: one is enough
        self._began_at = np.zeros(self.num_envs, np.int32)  # emulator frame of each game's start
        self._none_over = np.zeros(self.num_envs, bool)

    def reset(self) -> np.ndarray:
        self.episodes.abandon()
        self.obs, info = self._games.reset(seed=None if self._started else np.array(self._seeds))
        self._began_at = _began_at(info)
        self._started = True
        return self.obs

    def step(self, action: Rows) -> Transition:
        check_batch(action, self.num_envs)
        rows = action if isinstance(action, np.ndarray) else on_host(action)
        actions = self._action_codec.decode(rows)
        obs, reward, terminated, truncated, info = self._games.step(actions)
        self.obs = next_obs = obs
        reward = reward.astype(np.float32)
        over: list[int] = []
        is_over = self._none_over
        if "final_obs" in info:  # a game is over, or a life was lost
            began_at = _began_at(info)
            is_over = began_at != self._began_at
            over = np.flatnonzero(is_over).tolist()
            if over:
                self._began_at = began_at
                next_obs = np.where(is_over[:, None, None, None], info["final_obs"], obs)
        self.episodes.add(reward, over)
        return Transition(obs, next_obs, reward, terminated, truncated, is_over)

    def render(self) -> np.ndarray | None:
        """The newest frame that the agent sees, in grey: ale-py's batch draws nothing else."""
        if not self._renders:
            return None
        newest = self.obs[:, -1].repeat(_PIXEL, axis=1).repeat(_PIXEL, axis=2)
        return grid(np.repeat(newest[..., None], 3, axis=-1))

    def close(self) -> None:
        self._games.close()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the statistics of finished games; the running games are lost."""
        super().load_state_dict(state)
        self.reset()


def _began_at(info: Mapping[str, np.ndarray]) -> np.ndarray:
    """Frame count of the emulator at which each running game began.

    Only this shows a new game for sure: `terminated` is set for lost lives too, many games have no
    lives, and some stay at zero lives for a while before they end.
    """
    began_at: np.ndarray = info["frame_number"] - info["episode_frame_number"]
    return began_at
