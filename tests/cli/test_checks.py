"""`slm-lab doctor`: lines to read, JSON to use, and an exit code that says whether to train."""

from __future__ import annotations

import json

import pytest

from slm_lab.doctor.probes import Finding

FINDINGS = [
    Finding("python", "ok", "3.11.7"),
    Finding("extra atari", "warn", "ale-py not installed", "pip install 'slm-lab[atari]'"),
]
BROKEN = Finding("data", "fail", "data/: Permission denied", "chmod u+w data")


@pytest.fixture
def found(monkeypatch):
    def set_findings(findings: list[Finding]) -> None:
        monkeypatch.setattr("slm_lab.doctor.checks.examine", lambda: findings)

    return set_findings


def test_each_finding_is_a_line_with_its_fix_below(slm_lab, found):
    found(FINDINGS)
    code, out, _ = slm_lab("doctor")
    assert code == 0  # a missing extra is no failure
    assert out.splitlines() == [
        "ok    python       3.11.7",
        "warn  extra atari  ale-py not installed",
        "                   fix: pip install 'slm-lab[atari]'",
        "Ready to train, 1 warning(s).",
    ]


def test_what_keeps_one_from_training_is_exit_code_1(slm_lab, found):
    found([*FINDINGS, BROKEN])
    code, out, _ = slm_lab("doctor")
    assert code == 1
    assert out.splitlines()[-1] == "1 thing(s) to mend, 1 warning(s)."


def test_json_holds_the_same(slm_lab, found):
    found([*FINDINGS, BROKEN])
    code, out, _ = slm_lab("doctor", "--json")
    assert code == 1
    report = json.loads(out)
    assert report["ok"] is False
    assert [finding["status"] for finding in report["findings"]] == ["ok", "warn", "fail"]
    assert report["findings"][1]["fix"] == "pip install 'slm-lab[atari]'"


@pytest.mark.slow
def test_on_this_machine_it_says_something_about_everything(slm_lab, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_do_not_show_me")
    _, out, _ = slm_lab("doctor", "--json")
    assert "hf_do_not_show_me" not in out
    names = {finding["name"] for finding in json.loads(out)["findings"]}
    assert {"python", "packages", "cores", "torch", "GPU", "compiler", "extra search"} <= names
    assert {"env CartPole-v1", "data", "disk", "hub", "dstack"} <= names
