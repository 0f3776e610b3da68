"""The command line: arguments in, one call, exit codes out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slm_lab.spec import load_spec, packaged_spec_dir, packaged_specs
from slm_lab.training.options import RunOptions

ROOT = Path(__file__).parents[2]
PPO = "slm_lab/spec/benchmark/ppo/ppo_cartpole.json"
TINY = [
    "-s env.max_frame=200",
    "-s env.num_envs=2",
    "-s meta.log_frequency=50",
    "-s agent.algorithm.time_horizon=16",
    "-s agent.algorithm.minibatch_size=16",
    "-s agent.algorithm.training_epoch=1",
    "--compile off",
    "--seed 3",
]


@pytest.fixture
def called(monkeypatch):
    """What `run` would have been called with, instead of training."""
    calls: list[tuple[Any, str, Any]] = []

    def record(spec, mode, options):
        calls.append((spec, mode, options))
        raise SystemExit(0)

    monkeypatch.setattr("slm_lab.api.run.run", record)
    return calls


def write_spec(**values: Any) -> str:
    """A file `mine.json` with the shipped PPO spec, changed at the dotted keys (__ for a dot)."""
    tree = load_spec(PPO).to_dict()
    for key, value in values.items():
        *path, last = key.split("__")
        block = tree
        for step in path:
            block = block[step]
        block[last] = value
    Path("mine.json").write_text(json.dumps({"mine": tree}))
    return "mine.json"


# Call forms


def test_both_call_forms_and_options_in_any_place_are_the_same_call(slm_lab, called):
    forms = [
        ["run", PPO, "ppo_cartpole", "dev", "--render", "--seed", "7"],
        [PPO, "ppo_cartpole", "dev", "--render", "--seed", "7"],
        ["--render", "--seed", "7", PPO, "ppo_cartpole", "dev"],
        ["--seed=7", PPO, "--render", "ppo_cartpole", "dev"],
    ]
    for form in forms:
        assert slm_lab(*form) == (0, "", "")
    assert len(called) == 4
    assert all(call == called[0] for call in called)
    spec, mode, options = called[0]
    assert (mode, options.render, spec.meta.random_seed) == ("dev", True, 7)


def test_run_without_arguments_is_the_demo(slm_lab, called):
    slm_lab("run")
    ((spec, mode, options),) = called
    assert (spec.name, spec.env.name, mode) == ("ppo_cartpole", "CartPole-v1", "dev")
    assert (options.log_level, options.optimize_perf, options.render) == ("INFO", True, False)


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (["--render"], {"RENDER": "1"}),
        (["--log-level", "DEBUG"], {"LOG_LEVEL": "DEBUG"}),
        (["--profile"], {"PROFILE": "true"}),
        (["--log-extra"], {"LOG_EXTRA": "true"}),
        (["--no-optimize-perf"], {"OPTIMIZE_PERF": "false"}),
        (["--cuda-offset", "2"], {"CUDA_OFFSET": "2"}),
        ([], {"RENDER": "0", "PROFILE": "false", "OPTIMIZE_PERF": "1", "CUDA_OFFSET": "0"}),
    ],
)
def test_a_variable_does_what_its_flag_does(slm_lab, called, monkeypatch, flags, variables):
    slm_lab(PPO, "ppo_cartpole", "dev", *flags)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    slm_lab(PPO, "ppo_cartpole", "dev")
    by_flag, by_variable = (options for _, _, options in called)
    assert by_flag == by_variable
    assert (by_flag == RunOptions()) is (not flags)


def test_flags_that_shape_the_learning_end_up_in_the_spec(slm_lab, called):
    slm_lab(PPO, "ppo_cartpole", "train", "--compile", "on", "--seed", "0", "-s", "env.num_envs=8")
    ((spec, mode, _),) = called
    assert mode == "train"
    assert (spec.meta.compile, spec.meta.random_seed, spec.env.num_envs) == ("on", 0, 8)


# Bad input: exit code 2, a message that names the culprit, no traceback, no folder


def refused(result: tuple[Any, str, str]) -> str:
    code, out, err = result
    assert code == 2, err
    assert "Traceback" not in err
    assert out == ""
    assert not Path("data").exists() or not any(Path("data").iterdir())
    return " ".join(err.replace("│", " ").split())  # a box wraps long lines


def test_five_mistakes_are_five_messages(slm_lab):
    file = write_spec(
        agent__algorithm__gama=0.9,
        agent__algorithm__lam=1.5,
        agent__net__hid_layers="wide",
        env__num_envs=0,
        meta__max_session="many",
    )
    code, _, err = slm_lab("run", file, "mine", "dev")
    refused((code, "", err))
    title, *problems = err.strip().splitlines()
    assert title == "SpecError: 5 problems in mine.json"
    assert sorted(problem.split(":")[0].strip() for problem in problems) == [
        "agent.algorithm.gama",
        "agent.algorithm.lam",
        "agent.net.hid_layers",
        "env.num_envs",
        "meta.max_session",
    ]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([PPO, "ppo_cartpole", "trian"], ["MODE", "trian", "dev, train"]),
        ([PPO, "ppo_cartpole", "dev", "--compile", "maybe"], ["--compile", "maybe", "auto"]),
        ([PPO, "ppo_cartpole", "dev", "--log-level", "loud"], ["--log-level", "loud", "DEBUG"]),
        ([PPO, "ppo_cartpole", "dev", "--seed", "-1"], ["--seed", "equal to 0"]),
        ([PPO, "ppo_cartpole", "dev", "--seed", "x"], ["--seed", "integer"]),
        ([PPO, "ppo_cartpole", "dev", "--sed", "3"], ["--sed", "--seed"]),
        ([PPO, "ppo_cartpole", "dev", "-s", "max_fram=1"], ["-s max_fram=1 changes nothing"]),
        ([PPO, "ppo_cartpole", "dev", "-s", "env.max_fram=1"], ["env.max_fram", "`max_frame`"]),
        ([PPO, "ppo_cartpole", "dev", "-s", "fast"], ["-s fast", "KEY=VALUE"]),
        (["benchmark/ppo/ppo_cartpol.json", "x", "dev"], ["SPEC_FILE", "ppo_cartpole.json"]),
        ([PPO, "ppo_cartpol", "dev"], ["SPEC_NAME", "ppo_cartpol", "ppo_cartpole"]),
        ([PPO, "ppo_cartpole", "dev", "-s", "env.name=CartPol-v1"], ["env.name", "CartPole-v1"]),
        ([PPO, "ppo_cartpole", "dev", "-s", "env.name=my_envs:X-v0"], ["env.name", "`my_envs`"]),
        (["env", "check", "CartPol-v1"], ["env.name", "CartPole-v1"]),
        (["env", "check", "CartPole-v1", "--backend", "rust"], ["--backend", "rust", "envpool"]),
        (["spec", "a.json", "b", "c"], ["FILE", "--check"]),
    ],
)
def test_a_wrong_argument_is_named_with_the_way_out(slm_lab, arguments, named):
    message = refused(slm_lab(*arguments))
    for word in named:
        assert word in message


def test_a_variable_with_a_wrong_value_is_named_too(slm_lab, monkeypatch):
    monkeypatch.setenv("LOG_LEVEL", "loud")
    assert "LOG_LEVEL" in refused(slm_lab(PPO, "ppo_cartpole", "dev"))


def test_a_missing_extra_is_named(slm_lab, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)  # as if it were not installed
    message = refused(slm_lab(PPO, "ppo_cartpole", "dev", "-s", "env.name=ALE/Pong-v5"))
    assert "pip install 'slm-lab[atari]'" in message


# slm-lab spec


def test_spec_prints_what_will_run_and_that_loads_again(slm_lab):
    code, out, _ = slm_lab("spec", PPO, "ppo_cartpole", "-s", "env.max_frame=1e5")
    assert code == 0
    Path("resolved.json").write_text(out)
    again = load_spec("resolved.json")
    assert again.env.max_frame == 100_000
    assert again.agent == load_spec(PPO, "ppo_cartpole").agent


def test_spec_without_arguments_lists_what_ships(slm_lab):
    code, out, _ = slm_lab("spec")
    assert code == 0
    assert "benchmark/ppo/ppo_cartpole.json  ppo_cartpole" in out.splitlines()
    assert len(out.splitlines()) == len(list(packaged_specs()))


def test_every_shipped_spec_passes_its_check_in_one_line(slm_lab):
    specs = list(packaged_specs())
    shipped = sorted({str(packaged_spec_dir() / path) for path, _ in specs})
    code, out, _ = slm_lab("spec", "--check", *shipped)
    assert code == 0
    assert len([line for line in out.splitlines() if line.startswith("ok ")]) == len(specs)


def test_a_check_reports_every_broken_file_and_still_checks_the_rest(slm_lab):
    Path("cut.json").write_text('{"mine": {')
    file = write_spec(agent__algorithm__gama=0.9)
    code, out, _ = slm_lab("spec", "--check", "missing.json", "cut.json", file, PPO)
    assert code == 2
    marks = [line.split()[:2] for line in out.splitlines() if not line.startswith(" ")]
    assert marks == [
        ["FAIL", "missing.json"],
        ["FAIL", "cut.json"],
        ["FAIL", "mine.json"],
        ["ok", PPO],
    ]
    assert "agent.algorithm.gama" in out


def test_a_check_looks_for_the_env(slm_lab, monkeypatch):
    entries = {
        "a": "CartPol-v1",
        "b": "nowhere.envs:Mine-v0",
        "c": "playground/CartpoleBalanc",
        "d": "CartPole-v1",
        "e": "ALE/Pong-v5",
    }
    small = {"agent": {"algorithm": {"name": "PPO"}}, "env": {"max_frame": 1e6}}
    tree = {n: {**small, "env": {"name": env, "max_frame": 1e6}} for n, env in entries.items()}
    Path("mine.json").write_text(json.dumps(tree))
    monkeypatch.setitem(sys.modules, "ale_py", None)  # as if it were not installed
    code, out, _ = slm_lab("spec", "--check", "mine.json")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 2
    assert [line for line in lines if line.startswith(("ok", "FAIL"))] == [
        *(f"FAIL mine.json {name}" for name in "abc"),
        *(f"ok mine.json {name}" for name in "de"),
    ]
    assert "Did you mean `CartPole-v1`" in lines[1]
    assert lines[3].startswith("env.name: cannot import `nowhere.envs` of `nowhere.envs:Mine-v0`")
    assert "CartpoleBalance" in lines[5]
    assert "pip install 'slm-lab[atari]'" in lines[8]  # a warning


def test_a_misspelt_key_in_a_search_is_an_error_at_the_start(slm_lab):
    file = write_spec(search={"agent.algorithm.gama__uniform": [0.9, 0.99]})
    message = refused(slm_lab("run", file, "mine", "search"))
    assert (
        "search.agent.algorithm.gama__uniform: unknown key for PPO. Did you mean `gamma`" in message
    )


def test_a_render_without_a_display_is_one_line(slm_lab, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
    code, _, err = slm_lab(PPO, "ppo_cartpole", "dev", "--render")
    last = err.strip().splitlines()[-1]
    assert code == 2
    assert last.startswith("EnvError: --render: no window could be opened (")
    assert "Leave --render out on a machine without one" in last
    assert "Traceback" not in err
    assert not any(Path("data").iterdir())


# slm-lab env check


def test_env_check_prints_spaces_backend_and_speed(slm_lab):
    code, out, _ = slm_lab("env", "check", "CartPole-v1")
    assert code == 0
    assert "CartPole-v1 x 4 (gymnasium)" in out
    assert "(4,) float32" in out
    assert "discrete (2,)" in out
    assert "frames/s" in out


def test_env_check_of_a_broken_env_fails(slm_lab):
    Path("mine_broken.py").write_text(
        "import gymnasium as gym, numpy as np\n"
        "class Broken(gym.Env):\n"
        "    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)\n"
        "    action_space = gym.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n"
        "        return np.zeros(1, np.float32), {}\n"
        "    def step(self, action):\n"
        "        return np.zeros(1, np.float32), float('nan'), True, False, {}\n"
        "gym.register('MineBroken-v0', entry_point=Broken)\n"
    )
    code, out, _ = slm_lab("env", "check", "mine_broken:MineBroken-v0")
    assert code == 1
    assert "problem: reward: NaN or infinite" in out


# Whole runs


def test_a_run_ends_with_its_score_its_folder_and_what_to_do_next(slm_lab):
    tiny = [word for flag in TINY for word in flag.split()]
    code, out, err = slm_lab("run", "benchmark/ppo/ppo_cartpole.json", "ppo_cartpole", "dev", *tiny)
    assert code == 0, err
    (predir,) = Path("data").iterdir()
    assert f"Folder  {predir}" in out
    assert "Score   last 100 episodes" in out
    assert "slm-lab run benchmark/ppo/ppo_cartpole.json ppo_cartpole train" in out
    assert "trial_metrics: frame:2.00e+02 | total_reward_ma:" in err
    assert load_spec(predir / "ppo_cartpole_spec.json").meta.random_seed == 3


def test_a_run_with_a_failed_session_exits_with_1(slm_lab):
    Path("cli_crash.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Crash(CartPoleEnv):\n"
        "    steps = 0\n"
        "    def step(self, action):\n"
        "        self.steps += 1\n"
        "        if self.steps > limit:\n"
        "            raise RuntimeError('[red] the pole broke')\n"
        "        return super().step(action)\n"
        "limit = 60\n"
        "gym.register('Crash-v0', entry_point=Crash)\n"
    )
    tiny = [word for flag in TINY for word in flag.split()]
    command = [PPO, "ppo_cartpole", "dev", *tiny, "-s", "env.name=cli_crash:Crash-v0"]
    code, out, _ = slm_lab(*command)
    assert code == 1
    assert "Session 0 failed: RuntimeError: [red] the pole broke" in out
    assert "Next" not in out

    sys.modules["cli_crash"].limit = 3  # type: ignore[attr-defined]
    code, _, err = slm_lab(*command)
    assert code == 1
    assert err.splitlines()[-1].startswith("SessionsFailed: all sessions failed: RuntimeError")


def test_the_help_is_there_at_once():
    code = (
        "import sys\n"
        "from slm_lab.cli.main import main\n"
        "sys.argv = ['slm-lab', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as exit_:\n"
        "    assert not exit_.code\n"
        "heavy = {'torch', 'gymnasium', 'pandas', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for command in ("run", "spec", "env"):
        assert f" {command} " in done.stdout


def test_a_search_takes_its_flags_from_the_command_or_the_environment(slm_lab, monkeypatch):
    calls: list[tuple[RunOptions, str]] = []

    def record(spec, options, *, resume):
        calls.append((options, resume))
        raise SystemExit(0)

    monkeypatch.setattr("slm_lab.api.run.search", record)
    monkeypatch.setenv("KEEP_TRIALS", "7")
    monkeypatch.setenv("RAY_ADDRESS", "ray.example:6379")
    slm_lab("run", PPO, "ppo_cartpole", "search", "--validate", "2")
    slm_lab(PPO, "ppo_cartpole", "search@latest", "--keep", "-1", "--ray-address", "other:1")
    (first, where), (second, where_again) = calls
    assert (first.keep, first.validate, first.ray_address, where) == (7, 2, "ray.example:6379", "")
    assert (second.keep, second.validate, second.ray_address) == (-1, 0, "other:1")
    assert where_again == "latest"


def test_a_dry_run_prints_the_search_and_leaves_nothing(slm_lab):
    sets = " ".join(TINY[:-1]).split()
    code, out, _ = slm_lab("run", PPO, "ppo_cartpole", "search", "--dry-run", *sets)
    assert code == 0
    assert "agent.algorithm.gamma ~ uniform(0.9, 0.999)" in out
    assert "20 over 5 dimension(s): 4.0 per dimension, the rule is 3 to 4: enough" in out
    assert "frames/s" in out
    assert list(Path().iterdir()) == []


def test_a_spec_without_a_search_block_is_told_what_it_lacks(slm_lab):
    path = write_spec(search={})
    code, _, err = slm_lab("run", path, "mine", "search", "--dry-run")
    assert code == 2
    assert "search: missing; a search needs a block such as" in err


def test_a_dry_run_of_anything_else_is_refused(slm_lab):
    code, _, err = slm_lab("run", PPO, "ppo_cartpole", "train", "--dry-run")
    assert code == 2
    assert "--dry-run goes with the mode search" in err
