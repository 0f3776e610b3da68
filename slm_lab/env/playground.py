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
from dataclasses import dataclass
from typing import Any

from slm_lab.env.error import EnvError

PREFIX = "playground/"


@dataclass(frozen=True, slots=True)
class Task:
    """One name of MuJoCo Playground.

    `episode_length` counts control steps, of which a decision takes `action_repeat`. `parts` names
    what envpool's observation consists of, in Playground's order; none means a plain array, or a
    dict of `state` and `privileged_state`. Parts in `backwards` have their columns the other way.
    """

    name: str
    pool_id: str
    parts: tuple[str, ...] = ()
    episode_length: int = 1000
    action_repeat: int = 1
    backwards: tuple[str, ...] = ()

    @property
    def needs_menagerie(self) -> bool:
        """Whether Playground fetches the robot's model from elsewhere at first use."""
        return self.pool_id.startswith("MuJoCoPlayground/")


_POSITION_VELOCITY = ("position", "velocity")
_FINGER = (*_POSITION_VELOCITY, "touch")
_FINGER_TURN = (*_FINGER, "target_position", "dist_to_target")
_HUMANOID = ("joint_angles", "head_height", "extremities", "torso_vertical", "com_velocity")
_WALKER = ("orientations", "height", "velocity")

# Name -> (parts, envpool's id where it is not the name with `-v1`).
_DM_CONTROL: dict[str, tuple[tuple[str, ...], str | None]] = {
    "AcrobotSwingup": (("orientations", "velocity"), None),
    "AcrobotSwingupSparse": (("orientations", "velocity"), None),
    "BallInCup": (_POSITION_VELOCITY, "BallInCupCatch-v1"),
    "CartpoleBalance": (_POSITION_VELOCITY, None),
    "CartpoleBalanceSparse": (_POSITION_VELOCITY, None),
    "CartpoleSwingup": (_POSITION_VELOCITY, None),
    "CartpoleSwingupSparse": (_POSITION_VELOCITY, None),
    "CheetahRun": (_POSITION_VELOCITY, None),
    "FingerSpin": (_FINGER, None),
    "FingerTurnEasy": (_FINGER_TURN, None),
    "FingerTurnHard": (_FINGER_TURN, None),
    "FishSwim": (("upright", "joint_angles", "target", "velocity"), None),
    "HopperHop": (_FINGER, None),
    "HopperStand": (_FINGER, None),
    "HumanoidRun": ((*_HUMANOID, "velocity"), None),
    "HumanoidStand": ((*_HUMANOID, "velocity"), None),
    "HumanoidWalk": ((*_HUMANOID, "velocity"), None),
    "PendulumSwingup": (("orientation", "velocity"), None),
    "PointMass": (_POSITION_VELOCITY, "PointMassEasy-v1"),
    "ReacherEasy": (("position", "to_target", "velocity"), None),
    "ReacherHard": (("position", "to_target", "velocity"), None),
    "SwimmerSwimmer6": (("joints", "to_target", "body_velocities"), None),
    "WalkerRun": (_WALKER, None),
    "WalkerStand": (_WALKER, None),
    "WalkerWalk": (_WALKER, None),
}

# Name -> episode length in control steps, as in Playground's own configs.
_LOCOMOTION = {
    "ApolloJoystickFlatTerrain": 1000,
    "BarkourJoystick": 1000,
    "BerkeleyHumanoidJoystickFlatTerrain": 1000,
    "BerkeleyHumanoidJoystickRoughTerrain": 1000,
    "G1JoystickFlatTerrain": 1000,
    "G1JoystickRoughTerrain": 1000,
    "Go1Footstand": 500,
    "Go1Getup": 300,
    "Go1Handstand": 500,
    "Go1JoystickFlatTerrain": 1000,
    "Go1JoystickRoughTerrain": 1000,
    "H1InplaceGaitTracking": 1000,
    "H1JoystickGaitTracking": 1000,
    "Op3Joystick": 1000,
    "SpotFlatTerrainJoystick": 1000,
    "SpotGetup": 300,
    "SpotJoystickGaitTracking": 1000,
    "T1JoystickFlatTerrain": 1000,
    "T1JoystickRoughTerrain": 1000,
}
_MANIPULATION = {
    "AeroCubeRotateZAxis": 500,
    "AlohaHandOver": 250,
    "AlohaSinglePegInsertion": 1000,
    "LeapCubeReorient": 1000,
    "LeapCubeRotateZAxis": 500,
    "PandaOpenCabinet": 150,
    "PandaPickCube": 150,
    "PandaPickCubeCartesian": 200,
    "PandaPickCubeOrientation": 150,
    "PandaRobotiqPushCube": 3000,
}

# Playground's configs say 1 for PendulumSwingup; SLM Lab's published score was reached with 4, and
# so was Playground's own setting meant (RL config of the misspelt `PendulumSwingUp`).
_ACTION_REPEAT = {"PendulumSwingup": 4, "AlohaSinglePegInsertion": 2, "PandaRobotiqPushCube": 4}

# dm_control gives (cos, sin) of the pendulum's angle, Playground (sin, cos).
_BACKWARDS = {"PendulumSwingup": ("orientation",)}

TASKS: dict[str, Task] = {
    name: Task(
        name,
        pool_id or f"{name}-v1",
        parts,
        action_repeat=_ACTION_REPEAT.get(name, 1),
        backwards=_BACKWARDS.get(name, ()),
    )
    for name, (parts, pool_id) in _DM_CONTROL.items()
} | {
    name: Task(
        name,
        f"MuJoCoPlayground/{name}-v1",
        episode_length=length,
        action_repeat=_ACTION_REPEAT.get(name, 1),
    )
    for name, length in (_LOCOMOTION | _MANIPULATION).items()
}


def find_task(env_name: str) -> Task:
    """The task of `playground/<Name>`."""
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
