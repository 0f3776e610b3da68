"""The tasks of MuJoCo Playground, `playground/<Name>`, for both back-ends.

MuJoCo Playground has 54 of them: 25 tasks of the DM Control Suite, 19 of walking robots, 10 of
manipulation. docs/PLAYGROUND.md says, name by name, where the two back-ends differ.

Observations are one row. Where Playground gives a dict, its `state` is the row; with
`env.privileged` its `privileged_state` follows, for the critic alone. envpool hands out the DM
Control tasks in named parts: they are laid out in the order of Playground's own observation, and
parts that only other tasks of the same robot use (all zeros) are left out.
"""

from __future__ import annotations

import difflib
from dataclasses import KW_ONLY, dataclass
from typing import Any

from slm_lab.env.error import EnvError

PREFIX = "playground/"


@dataclass(frozen=True, slots=True)
class Task:
    """One name of MuJoCo Playground.

    `parts` names what envpool's observation consists of, in Playground's order; none means a plain
    array, or a dict of `state` and `privileged_state`. Parts in `backwards` have their columns the
    other way. `episode_length` counts control steps, of which a decision takes `action_repeat`; a
    control step lasts `control_seconds`.
    """

    name: str
    parts: tuple[str, ...] = ()
    _: KW_ONLY
    episode_length: int = 1000
    action_repeat: int = 1
    control_seconds: float = 0.02
    backwards: tuple[str, ...] = ()
    port: str | None = None  # envpool's name of a DM Control task, where it is another

    @property
    def needs_menagerie(self) -> bool:
        """Whether Playground fetches the robot's model from elsewhere at first use."""
        return not self.parts

    @property
    def pool_id(self) -> str:
        return f"{self.port or self.name}-v1" if self.parts else f"MuJoCoPlayground/{self.name}-v1"


_POSITION_VELOCITY = ("position", "velocity")
_FINGER = (*_POSITION_VELOCITY, "touch")
_FINGER_TURN = (*_FINGER, "target_position", "dist_to_target")
_TORSO = ("joint_angles", "head_height", "extremities", "torso_vertical", "com_velocity")
_HUMANOID = (*_TORSO, "velocity")
_WALKER = ("orientations", "height", "velocity")

# Episode lengths and repeats are those of Playground's own configs, but for PendulumSwingup: its
# config says 1; SLM Lab's published score was reached with 4, and so was Playground's own setting
# meant (RL config of the misspelt `PendulumSwingUp`). Its angle is (cos, sin) in dm_control.
_TASKS = (
    Task("AcrobotSwingup", ("orientations", "velocity"), control_seconds=0.01),
    Task("AcrobotSwingupSparse", ("orientations", "velocity"), control_seconds=0.01),
    Task("BallInCup", _POSITION_VELOCITY, port="BallInCupCatch"),
    Task("CartpoleBalance", _POSITION_VELOCITY, control_seconds=0.01),
    Task("CartpoleBalanceSparse", _POSITION_VELOCITY, control_seconds=0.01),
    Task("CartpoleSwingup", _POSITION_VELOCITY, control_seconds=0.01),
    Task("CartpoleSwingupSparse", _POSITION_VELOCITY, control_seconds=0.01),
    Task("CheetahRun", _POSITION_VELOCITY, control_seconds=0.01),
    Task("FingerSpin", _FINGER),
    Task("FingerTurnEasy", _FINGER_TURN),
    Task("FingerTurnHard", _FINGER_TURN),
    Task("FishSwim", ("upright", "joint_angles", "target", "velocity"), control_seconds=0.04),
    Task("HopperHop", _FINGER),
    Task("HopperStand", _FINGER),
    Task("HumanoidRun", _HUMANOID, control_seconds=0.025),
    Task("HumanoidStand", _HUMANOID, control_seconds=0.025),
    Task("HumanoidWalk", _HUMANOID, control_seconds=0.025),
    Task(
        "PendulumSwingup", ("orientation", "velocity"), action_repeat=4, backwards=("orientation",)
    ),
    Task("PointMass", _POSITION_VELOCITY, port="PointMassEasy"),
    Task("ReacherEasy", ("position", "to_target", "velocity")),
    Task("ReacherHard", ("position", "to_target", "velocity")),
    Task("SwimmerSwimmer6", ("joints", "to_target", "body_velocities"), control_seconds=0.03),
    Task("WalkerRun", _WALKER, control_seconds=0.025),
    Task("WalkerStand", _WALKER, control_seconds=0.025),
    Task("WalkerWalk", _WALKER, control_seconds=0.025),
    Task("ApolloJoystickFlatTerrain"),
    Task("BarkourJoystick"),
    Task("BerkeleyHumanoidJoystickFlatTerrain"),
    Task("BerkeleyHumanoidJoystickRoughTerrain"),
    Task("G1JoystickFlatTerrain"),
    Task("G1JoystickRoughTerrain"),
    Task("Go1Footstand", episode_length=500),
    Task("Go1Getup", episode_length=300),
    Task("Go1Handstand", episode_length=500),
    Task("Go1JoystickFlatTerrain"),
    Task("Go1JoystickRoughTerrain"),
    Task("H1InplaceGaitTracking"),
    Task("H1JoystickGaitTracking"),
    Task("Op3Joystick"),
    Task("SpotFlatTerrainJoystick"),
    Task("SpotGetup", episode_length=300),
    Task("SpotJoystickGaitTracking"),
    Task("T1JoystickFlatTerrain"),
    Task("T1JoystickRoughTerrain"),
    Task("AeroCubeRotateZAxis", episode_length=500, control_seconds=0.05),
    Task("AlohaHandOver", episode_length=250),
    Task("AlohaSinglePegInsertion", action_repeat=2, control_seconds=0.0025),
    Task("LeapCubeReorient", control_seconds=0.05),
    Task("LeapCubeRotateZAxis", episode_length=500, control_seconds=0.05),
    Task("PandaOpenCabinet", episode_length=150),
    Task("PandaPickCube", episode_length=150),
    Task("PandaPickCubeCartesian", episode_length=200, control_seconds=0.05),
    Task("PandaPickCubeOrientation", episode_length=150),
    Task("PandaRobotiqPushCube", episode_length=3000, action_repeat=4, control_seconds=0.005),
)
TASKS = {task.name: task for task in _TASKS}


def find_task(env_name: str) -> Task:
    name = env_name.removeprefix(PREFIX)
    if name in TASKS:
        return TASKS[name]
    near = difflib.get_close_matches(name, TASKS, n=3)
    hint = "Did you mean " + " or ".join(f"`{PREFIX}{near_name}`" for near_name in near) + "?"
    raise EnvError(
        f"env.name: MuJoCo Playground has no env `{name}`. "
        + (hint if near else "docs/PLAYGROUND.md lists the 54 names.")
    )


def action_repeat(task: Task, options: dict[str, Any]) -> int:
    """Take `action_repeat`, the control steps per decision, out of the options of an env."""
    repeat = int(options.pop("action_repeat", task.action_repeat))
    if repeat < 1:
        raise EnvError(f"env.action_repeat: found {repeat}. Expected 1 or more.")
    return repeat
