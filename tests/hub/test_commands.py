"""`slm-lab list`, `pull`, `push`, `graduate` and `run --upload-hf`, as they are typed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., tuple[int, str, str]]
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def here(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, whose data/ holds the run folder."""
    monkeypatch.chdir(run_dir.parents[1])
    return run_dir.parents[1]


def test_a_run_folder_goes_there_and_back(hub: Any, here: Path, slm_lab: Call, kit: Any) -> None:
    code, out, _ = slm_lab("push", f"data/{kit.FOLDER}")
    assert code == 0
    assert out.startswith(f"Pushed {kit.FOLDER} to {hub.url}/datasets/{kit.REPO}: 7 file(s), ")
    assert slm_lab("list", "--remote") == (
        0,
        f"{kit.FOLDER}\n",
        f"1 run folder(s) in {hub.url}/datasets/team/runs\n",
    )
    code, out, _ = slm_lab("pull", "ppo_cartpole", "-d", "other")
    assert code == 0
    assert kit.contents(here / "other" / kit.FOLDER) == kit.contents(here / "data" / kit.FOLDER)
    code, out, _ = slm_lab("pull", "ppo_cartpole")
    assert (code, out) == (0, f"Pulled {kit.FOLDER} into data: up to date, 7 file(s)\n")


def test_a_flag_names_another_remote(hub: Any, here: Path, share: Path, slm_lab: Call, kit: Any):
    assert slm_lab("push", f"data/{kit.FOLDER}", "--repo", f"file:{share}")[0] == 0
    assert slm_lab("list", "--remote", "--repo", f"file:{share}")[1] == f"{kit.FOLDER}\n"
    assert slm_lab("list", "--remote")[1] == ""


def test_list_and_pull_list_take_a_pattern(hub: Any, here: Path, slm_lab: Call, kit: Any) -> None:
    for name in ("ppo_hopper_2026", "sac_ant_2026"):
        hub.datasets[kit.REPO].put(f"data/{name}/x_spec.json", b"{}")
    assert slm_lab("list", "--remote", "hopper")[1] == "ppo_hopper_2026\n"
    assert slm_lab("list", "--remote", "*2026")[1] == "ppo_hopper_2026\nsac_ant_2026\n"
    assert slm_lab("pull", "sac", "--list")[1] == "sac_ant_2026\n"
    assert slm_lab("pull", "sac", "-l")[1] == "sac_ant_2026\n"
    assert not (here / "data" / "sac_ant_2026").exists()


def test_an_empty_pattern_does_not_fetch_everything(hub: Any, here: Path, slm_lab: Call) -> None:
    code, _, err = slm_lab("pull", "--if-exists", "")
    assert (code, err) == (
        2,
        "RemoteError: PATTERN: is empty. Give a name or part of one, or `*` to fetch all.\n",
    )


def test_a_name_that_steers_the_terminal_is_not_printed(
    hub: Any, here: Path, slm_lab: Call, kit: Any
) -> None:
    hub.datasets[kit.REPO].put("data/\x1b[2Jgone/x_spec.json", b"{}")
    code, out, err = slm_lab("list", "--remote")
    assert (code, out) == (0, "")
    assert "and 1 with unusable names" in err
    code, out, err = slm_lab("pull", "gone")
    assert code == 2
    assert "\x1b" not in out + err


def test_nothing_to_pull_is_an_error_unless_that_was_expected(
    hub: Any, here: Path, slm_lab: Call
) -> None:
    code, _, err = slm_lab("pull", "nobody")
    assert code == 2
    assert err.startswith("RemoteError: PATTERN: nothing fits `nobody`")
    code, out, _ = slm_lab("pull", "--if-exists", "nobody")
    assert (code, "nothing to fetch" in out) == (0, True)


def test_one_folder_that_fails_does_not_keep_the_others(
    hub: Any, here: Path, slm_lab: Call, kit: Any
) -> None:
    dataset = hub.datasets[kit.REPO]
    dataset.put("data/a_evil/../../x", b"x")
    dataset.put("data/b_good/b_spec.json", b"{}")
    code, out, err = slm_lab("pull", "*_*")
    assert code == 2
    assert "Pulled b_good" in out
    assert "RemoteError: a_evil: holds" in err
    assert "Traceback" not in err


def test_a_token_never_shows(
    hub: Any, here: Path, slm_lab: Call, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_expired_secret")
    code, out, err = slm_lab("push", f"data/{kit.FOLDER}")
    assert code == 2
    assert "HF_TOKEN was not accepted" in err
    assert "hf_expired_secret" not in out + err


def test_graduate_says_no_with_the_reasons(
    hub: Any, here: Path, slm_lab: Call, kit: Any, tmp_path: Path
) -> None:
    code, _, err = slm_lab("graduate", "nobody", "--to", f"file:{tmp_path}")
    assert code == 2
    assert "NAME: `nobody` should mean one folder" in err


@pytest.mark.slow
def test_these_commands_do_without_torch_and_the_plain_ones_without_the_hub_library(
    tmp_path: Path, here: Path, share: Path, kit: Any
) -> None:
    """In a lean install neither is there."""
    code = (
        "import sys\n"
        "for name in ('torch', 'gymnasium', 'pandas', 'ray', 'huggingface_hub'):\n"
        "    sys.modules[name] = None\n"  # an import of it fails
        "from slm_lab.cli.main import main\n"
        "main()\n"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "HF_REPO": f"file:{share}"}
    for words in (
        ["push", f"data/{kit.FOLDER}"],
        ["list"],
        ["pull", "ppo", "-d", "other"],
        ["pull", "ppo", "--list"],
        ["push", "--help"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=here,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert kit.contents(here / "other" / kit.FOLDER) == kit.contents(here / "data" / kit.FOLDER)
    environment["HF_REPO"] = "team/runs"
    done = subprocess.run(
        [sys.executable, "-c", code, "list"],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "pip install huggingface_hub" in done.stderr


@pytest.mark.slow
def test_the_hub_commands_do_not_import_torch(hub: Any, here: Path, kit: Any) -> None:
    code = (
        "import sys\n"
        "from slm_lab.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code, e.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    for words in (["push", f"data/{kit.FOLDER}"], ["list"], ["pull", "ppo", "-d", "other"]):
        subprocess.run([sys.executable, "-c", code, *words], cwd=here, env=environment, check=True)
