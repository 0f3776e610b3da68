"""What the doctor finds, and that it shows no secret."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from slm_lab.doctor import checks
from slm_lab.doctor.probes import Finding

REPOSITORY = Path(__file__).parents[2]
NOBODY = "http://127.0.0.1:9"  # the port of `discard`, where nothing listens
SECRET = "hf_do_not_show_me"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server that answers, though it has nothing to show."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def statuses(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.status for finding in findings}


def test_versions_and_cores_are_named():
    python, packages = checks.check_versions()
    assert python.status == "ok"
    assert sys.version.split()[0] in python.found
    assert "numpy " in packages.found
    (cores,) = checks.check_cores()
    assert f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} usable" in cores.found


def test_a_container_with_fewer_cores_than_it_shows_is_warned_of(monkeypatch):
    monkeypatch.setattr(checks, "_cgroup_cores", lambda: 0.5)
    (cores,) = checks.check_cores()
    assert cores.status == "warn"
    assert "the container may use 0.5" in cores.found


def test_every_extra_of_the_project_is_looked_at():
    tree = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    declared = set(tree["project"]["optional-dependencies"]) - {"all", "dev"}
    assert set(checks.extras()) == declared
    names = {finding.name for finding in checks.check_extras()}
    assert names == {f"extra {extra}" for extra in declared}


def test_a_missing_extra_is_a_warning_with_the_line_that_installs_it(monkeypatch):
    declared = [("mine", "no-such-package>=1"), ("mine", "numpy"), ("all", "slm-lab[mine]")]
    monkeypatch.setattr(checks, "_requirements", lambda: iter(declared))
    assert checks.check_extras() == [
        Finding(
            "extra mine", "warn", "no-such-package not installed", "pip install 'slm-lab[mine]'"
        )
    ]


def test_an_extra_of_another_package_counts_with_what_that_package_wants():
    assert "box2d" in [name.lower() for name in checks.extras()["box2d"]]
    assert "gymnasium" not in checks.extras()["box2d"]  # which alone would be no Box2D


def test_a_data_folder_is_written_to_on_trial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = checks.check_data(Path("data"))
    assert statuses(found)["data"] == "ok"
    assert found[0].found == "the working directory, for data/ can be written"
    (tmp_path / "data").mkdir()
    assert checks.check_data(Path("data"))[0].found == "data/ can be written"
    assert list(tmp_path.rglob("*")) == [tmp_path / "data"]  # and nothing stays
    assert checks.check_data(Path("/proc"))[0].status == "fail"


def test_a_disk_that_fills_up_is_warned_of_and_a_full_one_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "LOW_DISK", 1e18)
    assert statuses(checks.check_data(tmp_path))["disk"] == "warn"
    monkeypatch.setattr(checks, "NO_DISK", 1e18)
    assert statuses(checks.check_data(tmp_path))["disk"] == "fail"


def test_the_hub_is_asked_and_the_token_is_never_shown(address, tmp_path):
    (found,) = checks.check_hub({"HF_ENDPOINT": address, "HF_TOKEN": SECRET, "HF_REPO": "me/runs"})
    assert found == Finding("hub", "ok", f"{address}, me/runs, with a token: answers")
    (found,) = checks.check_hub({"HF_ENDPOINT": NOBODY})
    assert found.status == "warn"
    assert "no HF_REPO set, without a token (HF_TOKEN): does not answer" in found.found
    (found,) = checks.check_hub({"HF_REPO": f"file:{tmp_path}"})
    assert found.status == "ok"
    (found,) = checks.check_hub({"HF_REPO": f"file:{tmp_path}/none"})
    assert found.status == "warn"


def test_the_dstack_server_of_the_default_project_is_asked(address, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (found,) = checks.check_dstack({})
    assert (found.status, found.fix) == (
        "warn",
        "dstack project add --name PROJECT --url URL --token TOKEN",
    )
    config = tmp_path / ".dstack" / "config.yml"
    config.parent.mkdir()
    project = "- {{name: main, url: '{}', token: {}, default: {}}}\n"
    config.write_text(
        "projects:\n"
        + project.format(NOBODY, SECRET, "false")
        + project.format(address, SECRET, "true")
    )
    assert checks.check_dstack({}) == [Finding("dstack", "ok", f"{address}: answers")]
    (found,) = checks.check_dstack({"DSTACK_SERVER_URL": NOBODY})
    assert found.status == "warn"
    config.write_text("projects: [\n")
    assert checks.check_dstack({})[0].status == "warn"


def test_a_probe_that_dies_or_hangs_is_a_finding():
    (found,) = checks.run_probe("nonsense")
    assert found.status == "fail"
    assert found.found == "died with exit code 1: KeyError: 'nonsense'"
    (found,) = checks.run_probe("envs", seconds=0.01)
    assert found.found == "has not ended after 0.01 s"


def test_without_torch_the_probe_says_so(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (found,) = checks.run_probe("torch")
    assert found.status == "warn"  # a lean install does other things
    assert found.found == "cannot be imported (no torch here): nothing can be trained here"


@pytest.mark.slow
def test_the_compiler_is_tried_and_envs_are_made(monkeypatch):
    found = {finding.name: finding for finding in checks.run_probe("torch")}
    assert found["torch"].status == "ok"
    assert found["compiler"].found.startswith("compiles and runs in ")
    monkeypatch.setenv("CXX", "/bin/false")  # a compiler, but what a compiler
    broken = statuses(checks.run_probe("torch"))
    assert broken["compiler"] == "warn"
    assert statuses(checks.run_probe("envs"))["env CartPole-v1"] == "ok"


def test_the_doctor_itself_needs_neither_torch_nor_gymnasium():
    code = (
        "import sys\n"
        "for name in ('torch', 'gymnasium', 'ray', 'dstack', 'huggingface_hub'):\n"
        "    sys.modules[name] = None\n"
        "from slm_lab.doctor import checks\n"
        "checks.run_probe = lambda name: []\n"
        "checks.unreachable = lambda url: 'is not asked'\n"
        "assert checks.examine()\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}
    )
