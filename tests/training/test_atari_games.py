"""Every Atari game that a target is stated for runs with the shared specs."""

from __future__ import annotations

import numpy as np
import pytest

from slm_lab.agent.agent import make_agent
from slm_lab.env import make_env
from slm_lab.spec import load_spec

# Every game of the benchmark tables, those marked as skipped for hard exploration included.
GAMES = """
Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider
Berzerk Bowling Boxing Breakout Carnival Centipede ChopperCommand CrazyClimber Defender DemonAttack
DoubleDunk ElevatorAction Enduro FishingDerby Freeway Frostbite Gopher Gravitar Hero IceHockey
Jamesbond JourneyEscape Kangaroo Krull KungFuMaster MontezumaRevenge MsPacman NameThisGame Phoenix
Pitfall Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest Skiing Solaris
SpaceInvaders StarGunner Surround Tennis TimePilot Tutankham UpNDown Venture VideoPinball
WizardOfWor YarsRevenge Zaxxon
""".split()  # noqa: SIM905 (a table of names reads better than 63 quoted ones)

SPECS = {
    "ppo_atari": "ppo/ppo_atari.json",
    "ppo_atari_lam85": "ppo/ppo_atari.json",
    "ppo_atari_lam70": "ppo/ppo_atari.json",
    "ppo_atari_nosticky": "ppo/ppo_atari.json",
    "a2c_gae_atari": "a2c/a2c_gae_atari.json",
    "dqn_atari": "dqn/dqn_atari.json",
    "ddqn_per_atari": "dqn/ddqn_per_atari.json",
    "sac_atari": "sac/sac_atari.json",
    "crossq_atari": "crossq/crossq_atari.json",
}
FIXED = {
    "ppo_pong": "ppo/ppo_pong.json",
    "ppo_qbert": "ppo/ppo_qbert.json",
    "dqn_pong": "dqn/dqn_pong.json",
    "dqn_qbert": "dqn/dqn_qbert.json",
}
# As small as the nets and rollouts of these specs can be made without changing what they are.
TINY = ["env.num_envs=2", "agent.net.fc_hid_layers=[8]", "meta.compile=off"]
TINY_BY_ALGORITHM = {
    "ppo": ["agent.algorithm.time_horizon=4", "agent.algorithm.minibatch_size=8"],
    "a2c": ["agent.algorithm.training_frequency=4"],
    "dqn": ["agent.algorithm.training_start_step=8", "agent.memory.max_size=64"],
    "sac": ["agent.algorithm.training_start_step=8", "agent.memory.max_size=64"],
}
TINY_BY_ALGORITHM |= {
    "ddqn": [*TINY_BY_ALGORITHM["dqn"], "agent.memory.batch_size=4"],
    "crossq": TINY_BY_ALGORITHM["sac"],
}


def test_there_are_sixty_three_games():
    assert len(set(GAMES)) == len(GAMES) == 63


@pytest.mark.slow  # a second each under load, for 63 games
@pytest.mark.parametrize("game", GAMES)
def test_a_game_constructs_and_steps_with_the_shared_spec(game):
    sets = [f"env=ALE/{game}-v5", *TINY]
    spec = load_spec("slm_lab/spec/benchmark/ppo/ppo_atari.json", "ppo_atari", sets)
    env = make_env(spec.env, seed=0)
    agent = make_agent(spec, env.spaces, seed=0)
    obs = env.reset()
    for _ in range(4):
        action = agent.act(obs)
        transition = env.step(agent.env_action(action))
        agent.observe(obs, action, transition)
        obs = transition.obs
    assert obs.shape == (2, 4, 84, 84)
    assert obs.dtype == np.uint8
    assert env.spaces.action_sizes[0] in range(3, 19)
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SPECS, *FIXED])
def test_a_shared_spec_plays_and_learns(name):
    file = (SPECS | FIXED)[name]
    sets = TINY + TINY_BY_ALGORITHM[name.split("_")[0]]
    if name in SPECS:
        sets = ["env=ALE/Pong-v5", *sets]
    spec = load_spec(f"slm_lab/spec/benchmark/{file}", name, sets)
    assert spec.env.kwargs["life_loss_info"] is True
    assert spec.env.clip_reward == (-1.0, 1.0)
    sticky = spec.env.kwargs.get("repeat_action_probability", 0.25)
    assert sticky == (0.0 if name == "ppo_atari_nosticky" else 0.25)
    env = make_env(spec.env, seed=0)
    agent = make_agent(spec, env.spaces, seed=0)
    obs, frame = env.reset(), 0
    while not agent.ready:
        action = agent.act(obs, frame=frame)
        transition = env.step(agent.env_action(action))
        agent.observe(obs, action, transition)
        obs, frame = transition.obs, frame + 2
    metrics = agent.update(frame)
    assert np.isfinite(metrics.values["loss"])
    assert metrics.opt_steps >= 1
    env.close()
