"""Workloads of the comparison, and their settings in words that all libraries share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm_lab import load_spec
from slm_lab.spec import ScheduleSpec, Spec
from slm_lab.spec.algorithm.a2c import ActorCriticSpec
from slm_lab.spec.algorithm.dqn import DQNSpec
from slm_lab.spec.algorithm.ppo import PPOSpec
from slm_lab.spec.algorithm.reinforce import ReinforceSpec
from slm_lab.spec.algorithm.sac import SoftPolicySpec
from slm_lab.spec.algorithm.td3 import TD3Spec

HERE = Path(__file__).parent
SHIPPED = HERE.parent / "slm_lab" / "spec" / "benchmark"
ARC = SHIPPED.parent / "benchmark_arc"
OWN = HERE / "specs.json"  # where a shipped spec has options that no peer has


@dataclass(frozen=True, slots=True)
class Workload:
    spec_file: Path
    spec_name: str
    frames: int
    peers: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()  # `-s` assignments, for the peers too
    cores: int = 1
    target: float | None = None  # mean of the last 100 returns that time is taken to
    bfloat16: bool = False  # whether layers are wide enough to be measured in bfloat16, too

    def spec(self, frames: int) -> Spec:
        return load_spec(self.spec_file, self.spec_name, sets=self.assignments(frames))

    def assignments(self, frames: int, precision: str = "float32") -> list[str]:
        always = ["meta.max_session=1", f"env.max_frame={frames}", f"meta.threads={self.cores}"]
        return [*self.sets, *always, "meta.compile=on", f"meta.precision={precision}"]


SB3 = ("sb3",)
BOTH = ("sb3", "sbx")

WORKLOADS = {
    "reinforce_cartpole": Workload(
        SHIPPED / "reinforce" / "reinforce_cartpole.json", "reinforce_cartpole", 100_000
    ),
    "a2c_cartpole": Workload(OWN, "a2c_cartpole", 100_000, peers=SB3),
    "ppo_cartpole": Workload(
        SHIPPED / "ppo" / "ppo_cartpole.json", "ppo_cartpole", 200_000, peers=BOTH, target=475.0
    ),
    "dqn_cartpole": Workload(OWN, "dqn_cartpole", 60_000, peers=BOTH),
    "ddqn_per_cartpole": Workload(OWN, "ddqn_per_cartpole", 60_000),
    "qrdqn_cartpole": Workload(OWN, "qrdqn_cartpole", 60_000, peers=SB3),
    "sac_pendulum": Workload(OWN, "sac_pendulum", 12_000, peers=BOTH, target=-200.0, bfloat16=True),
    "crossq_pendulum": Workload(
        OWN, "crossq_pendulum", 12_000, peers=BOTH, target=-200.0, bfloat16=True
    ),
    "td3_pendulum": Workload(OWN, "td3_pendulum", 12_000, peers=BOTH, target=-200.0, bfloat16=True),
    "tqc_pendulum": Workload(OWN, "tqc_pendulum", 12_000, peers=BOTH, target=-200.0, bfloat16=True),
    "ppo_lunarlander": Workload(OWN, "ppo_lunarlander", 100_000, peers=BOTH),
    "ppo_halfcheetah": Workload(
        OWN, "ppo_mujoco", 65_536, peers=BOTH, sets=("env=HalfCheetah-v5",), cores=2, bfloat16=True
    ),
    "ppo_humanoid": Workload(
        OWN, "ppo_mujoco", 32_768, peers=BOTH, sets=("env=Humanoid-v5",), cores=2, bfloat16=True
    ),
    "sac_halfcheetah": Workload(
        OWN, "sac_mujoco", 8_000, peers=BOTH, sets=("env=HalfCheetah-v5",), bfloat16=True
    ),
    "sac_humanoid": Workload(
        OWN, "sac_mujoco", 6_000, peers=BOTH, sets=("env=Humanoid-v5",), bfloat16=True
    ),
    "ppo_cheetah_run": Workload(
        ARC / "ppo" / "ppo_playground.yaml",
        "ppo_playground_vnorm_constlr",
        307_200,
        sets=(
            "env=playground/CheetahRun",
            "env.num_envs=1024",
            "env.num_threads=2",
            "agent.algorithm.time_horizon=30",
            "agent.algorithm.minibatch_size=960",
        ),
        cores=2,
        bfloat16=True,
    ),
    "ppo_pong": Workload(
        SHIPPED / "ppo" / "ppo_pong.json",
        "ppo_pong",
        32_768,
        peers=SB3,
        sets=("meta.log_frequency=2048",),
        cores=2,
        bfloat16=True,
    ),
    "ppo_pong_one_core": Workload(
        SHIPPED / "ppo" / "ppo_pong.json",
        "ppo_pong",
        32_768,
        peers=SB3,
        sets=("meta.log_frequency=2048",),
        bfloat16=True,
    ),
}
QUICK = ("a2c_cartpole", "ppo_cartpole", "dqn_cartpole", "sac_pendulum")
QUICK_SHARE = 0.25  # of the frames of a workload
CRITIC_KEYS = ("num_critics", "num_quantiles", "top_quantiles_to_drop_per_net")


def settings_of(spec: Spec, workload: Workload) -> dict[str, Any]:
    """Settings that decide the work per frame; a peer reads nothing else."""
    env, algorithm, net = spec.env, spec.agent.algorithm, spec.agent.net
    scheduler = net.lr_scheduler_spec
    common = {
        "algorithm": algorithm.name,
        "env": env.name,
        "net": net.type,
        "frames": env.max_frame,
        "num_envs": env.num_envs,
        "cores": workload.cores,
        "hidden": list(getattr(net, "hid_layers", ())),
        "activation": getattr(net, "hid_layers_activation", None),
        "normalize_obs": env.normalize_obs,
        "normalize_reward": env.normalize_reward,
        "lr": net.optim_spec.lr,
        "lr_to_zero": scheduler is not None and scheduler.name == "LinearToZero",
        "gamma": getattr(algorithm, "gamma", None),
        "max_grad_norm": net.clip_grad_val,
    }
    match algorithm:
        case PPOSpec():
            return common | {
                "horizon": algorithm.time_horizon,
                "minibatch": algorithm.minibatch_size,
                "epochs": algorithm.training_epoch,
                "gae_lambda": algorithm.lam,
                "clip_eps": algorithm.clip_eps_spec.start_val,
                "entropy_coef": start_of(algorithm.entropy_coef_spec),
                "value_coef": algorithm.val_loss_coef,
            }
        case ActorCriticSpec():
            return common | {
                "horizon": algorithm.training_frequency,
                "gae_lambda": algorithm.lam,
                "entropy_coef": start_of(algorithm.entropy_coef_spec),
                "value_coef": algorithm.val_loss_coef,
            }
        case ReinforceSpec():
            return common
        case DQNSpec() | SoftPolicySpec() | TD3Spec():
            memory, given = spec.agent.memory, type(algorithm).model_fields
            if algorithm.training_frequency != env.num_envs:
                raise ValueError(f"{workload.spec_name}: peers update once per vector step")
            return common | {
                "batch_size": memory.batch_size,
                "buffer_size": memory.max_size,
                "learning_starts": algorithm.training_start_step,
                "gradient_steps": algorithm.training_iter,
                "policy_delay": getattr(algorithm, "policy_delay", 1),
                "critic": {key: getattr(algorithm, key) for key in CRITIC_KEYS if key in given},
            }
    raise ValueError(f"{workload.spec_name}: no peer is told how to run {algorithm.name}")


def start_of(schedule: ScheduleSpec | None) -> float:
    return 0.0 if schedule is None else schedule.start_val
