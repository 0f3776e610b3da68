"""One PPO CartPole run by Stable-Baselines3 or SBX, in an environment that holds them.

Called by ppo_cartpole_vs_sb3.py: `python contestant_peers.py sb3 '<settings as JSON>' SEED`. Prints
one line of JSON. Only `learn` is timed, so imports and env construction are free of charge.
"""

import importlib.metadata
import json
import sys
import time
from typing import Any

import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

PACKAGES = {"sb3": ("stable-baselines3", "torch"), "sbx": ("sbx-rl", "jax")}


def main() -> None:
    library, settings, seed = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    env = make_vec_env("CartPole-v1", settings["num_envs"], seed=seed, vec_env_cls=DummyVecEnv)
    model = make_ppo(library, env, settings, seed)

    # A sample after every rollout and its updates. Wrapping `train` costs nothing per env step,
    # where an SB3 callback would be called.
    curve: list[tuple[int, float]] = []
    train = model.train

    def timed_train() -> None:
        train()
        curve.append((model.num_timesteps, time.perf_counter() - start))

    model.train = timed_train
    start = time.perf_counter()
    model.learn(settings["frames"])
    episodes = model.ep_info_buffer  # the last 100
    result = {
        "curve": curve,
        "score": sum(episode["r"] for episode in episodes) / len(episodes),
        "versions": {
            name: importlib.metadata.version(name) for name in (*PACKAGES[library], "gymnasium")
        },
    }
    print(json.dumps(result))


def make_ppo(library: str, env: DummyVecEnv, settings: dict[str, Any], seed: int) -> Any:
    """Same net shapes, batch sizes and coefficients; both libraries default to tanh."""
    if library == "sb3":
        from stable_baselines3 import PPO
    else:
        from sbx import PPO
    lr, hidden = settings["lr"], settings["hidden"]
    return PPO(
        "MlpPolicy",
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
        policy_kwargs={"net_arch": {"pi": hidden, "vf": hidden}},
        seed=seed,
        device="cpu",
        verbose=0,
    )


if __name__ == "__main__":
    main()
