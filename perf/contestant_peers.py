"""One run by Stable-Baselines3 or SBX, in an environment that holds them.

Called by side_by_side.py: `python -m perf.contestant_peers sb3 '<settings as JSON>' SEED`.
Prints one line of JSON. Only `learn` is timed: imports and the making of envs do not count.
"""

import importlib.metadata
import json
import math
import sys
import time
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecNormalize

from perf.peak_memory import peak_mb

PACKAGES = {"sb3": ("stable-baselines3", "sb3-contrib", "torch"), "sbx": ("sbx-rl", "jax")}
CURVE_POINTS = 200
# Left alone, `make_vec_env` asks for pictures, and LunarLander then simulates its engines' smoke.
UNSEEN = {"render_mode": None}


def main() -> None:
    library, settings, seed = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(settings["cores"])
    env = make_env(settings, seed)
    make = {"PPO": make_ppo, "ActorCritic": make_a2c}.get(settings["algorithm"], make_off_policy)
    model = make(library, env, settings, seed)

    # Samples after updates, now and then. Wrapping `train` costs nothing per env step, where an
    # SB3 callback would be called.
    curve: list[tuple[int, float, float]] = []
    train = model.train
    spacing = settings["frames"] / CURVE_POINTS

    def timed_train(*args: Any, **kwargs: Any) -> None:
        train(*args, **kwargs)
        if not curve or model.num_timesteps - curve[-1][0] >= spacing:
            curve.append((model.num_timesteps, time.time() - start, score(model)))

    model.train = timed_train
    start = time.time()
    model.learn(settings["frames"])
    curve.append((model.num_timesteps, time.time() - start, score(model)))
    result = {
        "curve": curve,
        "began": start,
        "peak_mb": peak_mb(),
        "versions": {
            name: importlib.metadata.version(name) for name in (*PACKAGES[library], "gymnasium")
        },
    }
    print(json.dumps(result))


def score(model: Any) -> float:
    """Mean return of the last 100 episodes."""
    episodes = model.ep_info_buffer
    return sum(e["r"] for e in episodes) / len(episodes) if episodes else math.nan


def make_env(settings: dict[str, Any], seed: int) -> VecEnv:
    """Make envs as the library's own examples do; Atari games are preprocessed as ours are."""
    name, num_envs = settings["env"], settings["num_envs"]
    if not name.startswith("ALE/"):
        envs: VecEnv = make_vec_env(
            name, num_envs, seed=seed, vec_env_cls=DummyVecEnv, env_kwargs=UNSEEN
        )
        seen, rewarded = settings["normalize_obs"], settings["normalize_reward"]
        if seen or rewarded:
            envs = VecNormalize(envs, norm_obs=seen, norm_reward=rewarded, gamma=settings["gamma"])
        return envs
    import ale_py
    import gymnasium
    from stable_baselines3.common.atari_wrappers import AtariWrapper

    gymnasium.register_envs(ale_py)
    # The wrapper skips and pools frames itself; actions stick in the emulator, as in ours.
    games = make_vec_env(
        name,
        num_envs,
        seed=seed,
        vec_env_cls=DummyVecEnv,
        env_kwargs={"frameskip": 1, "repeat_action_probability": 0.25, **UNSEEN},
        wrapper_class=AtariWrapper,
    )
    return VecFrameStack(games, 4)


def make_ppo(library: str, env: VecEnv, settings: dict[str, Any], seed: int) -> Any:
    """Make PPO with the net shapes, batch sizes and coefficients of our spec.

    Both libraries default to tanh for vectors, and to the Nature CNN of our spec for images.
    """
    if library == "sb3":
        from stable_baselines3 import PPO
    else:
        from sbx import PPO
    lr, hidden, is_conv = settings["lr"], settings["hidden"], settings["net"] == "ConvNet"
    return PPO(
        "CnnPolicy" if is_conv else "MlpPolicy",
        env,
        learning_rate=(lambda remaining: remaining * lr) if settings["lr_to_zero"] else lr,
        n_steps=settings["horizon"],
        batch_size=settings["minibatch"],
        n_epochs=settings["epochs"],
        gamma=settings["gamma"],
        gae_lambda=settings["gae_lambda"],
        clip_range=settings["clip_eps"],
        ent_coef=settings["entropy_coef"],
        vf_coef=settings["value_coef"],
        max_grad_norm=settings["max_grad_norm"],
        policy_kwargs=None if is_conv else {"net_arch": {"pi": hidden, "vf": hidden}},
        seed=seed,
        device="cpu",
        verbose=0,
    )


def make_a2c(library: str, env: VecEnv, settings: dict[str, Any], seed: int) -> Any:
    """Make A2C; SB3's defaults are those of our spec: RMSprop, five steps, lambda 1."""
    from stable_baselines3 import A2C

    hidden = settings["hidden"]
    return A2C(
        "MlpPolicy",
        env,
        learning_rate=settings["lr"],
        n_steps=settings["horizon"],
        gamma=settings["gamma"],
        gae_lambda=settings["gae_lambda"],
        ent_coef=settings["entropy_coef"],
        vf_coef=settings["value_coef"],
        max_grad_norm=settings["max_grad_norm"],
        policy_kwargs={"net_arch": {"pi": hidden, "vf": hidden}},
        seed=seed,
        device="cpu",
        verbose=0,
    )


def make_off_policy(library: str, env: VecEnv, settings: dict[str, Any], seed: int) -> Any:
    """Make DQN, SAC or one of their kin with `gradient_steps` minibatches after a vector step."""
    name = {"SoftActorCritic": "SAC"}.get(settings["algorithm"], settings["algorithm"])
    if library == "sbx":
        import sbx as home
    elif name in ("CrossQ", "QRDQN", "TQC"):
        import sb3_contrib as home
    else:
        import stable_baselines3 as home
    hidden = settings["hidden"]
    options: dict[str, Any] = {}
    if name in ("DQN", "QRDQN"):
        options |= {"policy_kwargs": {"net_arch": hidden}, "exploration_final_eps": 0.03}
        options |= {"tau": 0.01, "target_update_interval": 1}
    else:
        options["policy_kwargs"] = {"net_arch": {"pi": hidden, "qf": hidden}}
    if name == "QRDQN":
        options["policy_kwargs"]["n_quantiles"] = settings["critic"]["num_quantiles"]
    if name in ("CrossQ", "TD3"):
        options["policy_delay"] = settings["policy_delay"]
    if name == "TD3":  # its noise on target actions is ours
        mean, std = np.zeros(env.action_space.shape), np.full(env.action_space.shape, 0.1)
        options["action_noise"] = NormalActionNoise(mean, std)
    if name == "TQC":
        critic = settings["critic"]
        options["top_quantiles_to_drop_per_net"] = critic["top_quantiles_to_drop_per_net"]
        options["policy_kwargs"] |= {
            "n_critics": critic["num_critics"],
            "n_quantiles": critic["num_quantiles"],
        }
    return getattr(home, name)(
        "MlpPolicy",
        env,
        learning_rate=settings["lr"],
        buffer_size=settings["buffer_size"],
        learning_starts=settings["learning_starts"],
        batch_size=settings["batch_size"],
        gamma=settings["gamma"],
        train_freq=1,
        gradient_steps=settings["gradient_steps"],
        seed=seed,
        device="cpu",
        verbose=0,
        **options,
    )


if __name__ == "__main__":
    main()
