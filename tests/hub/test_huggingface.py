"""What only a hub does: accounts, pages, connections that break, answers that are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slm_lab.hub.huggingface import HuggingFaceRemote
from slm_lab.hub.remote import NotAllowed, RemoteError, open_remote
from slm_lab.hub.transfer import pull, push


@pytest.fixture
def remote(hub: Any, kit: Any) -> HuggingFaceRemote:
    return HuggingFaceRemote(kit.REPO)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere" / "data"


def test_one_push_is_one_commit(
    hub: Any, remote: HuggingFaceRemote, run_dir: Path, kit: Any
) -> None:
    before = len(hub.datasets[kit.REPO].messages)
    push(remote, run_dir)
    assert hub.datasets[kit.REPO].messages[before:] == [f"slm-lab push {kit.FOLDER}"]
    push(remote, run_dir)
    assert len(hub.datasets[kit.REPO].messages) == before + 1


def test_folders_lie_under_data_as_the_documents_say(
    hub: Any, remote: HuggingFaceRemote, run_dir: Path, kit: Any
) -> None:
    hub.datasets[kit.REPO].put("README.md", b"# Runs")
    push(remote, run_dir)
    assert f"data/{kit.FOLDER}/ppo_cartpole_t0_spec.json" in hub.datasets[kit.REPO].tree
    assert remote.folders() == [kit.FOLDER]


def test_reading_needs_no_token(
    hub: Any, run_dir: Path, elsewhere: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(HuggingFaceRemote(kit.REPO), run_dir)
    monkeypatch.delenv("HF_TOKEN")
    stranger = open_remote()
    assert stranger.folders() == [kit.FOLDER]
    pull(stranger, kit.FOLDER, elsewhere)
    assert kit.contents(elsewhere / kit.FOLDER) == kit.contents(run_dir)


def test_an_upload_without_a_token_says_how_to_get_one(
    hub: Any, run_dir: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(NotAllowed, match=r"HF_TOKEN is not set.*\.env.*settings/tokens"):
        push(HuggingFaceRemote(kit.REPO), run_dir)
    assert not hub.count("POST", "")


@pytest.mark.parametrize(
    ("token", "said"),
    [("hf_expired", r"401\. HF_TOKEN was not accepted"), ("hf_reader", r"403\. HF_TOKEN does not")],
)
def test_a_token_that_is_not_good_enough_is_told_and_never_shown(
    hub: Any, run_dir: Path, kit: Any, monkeypatch: pytest.MonkeyPatch, token: str, said: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(NotAllowed, match=said) as caught:
        push(HuggingFaceRemote(kit.REPO), run_dir)
    assert token not in str(caught.value)


def test_a_dataset_that_is_not_there_is_made_private_by_the_first_push(
    hub: Any, run_dir: Path, elsewhere: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = HuggingFaceRemote("team/new")
    with pytest.raises(NotAllowed, match=r"no such dataset, or a private one\..*HF_REPO"):
        new.folders()
    push(new, run_dir)
    assert hub.datasets["team/new"].private
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(NotAllowed, match="no such dataset, or a private one"):
        pull(HuggingFaceRemote("team/new"), kit.FOLDER, elsewhere)


def test_a_long_listing_is_read_page_by_page(
    hub: Any, remote: HuggingFaceRemote, run_dir: Path, elsewhere: Path, kit: Any
) -> None:
    hub.page = 2
    push(remote, run_dir)
    pull(remote, kit.FOLDER, elsewhere)
    assert kit.contents(elsewhere / kit.FOLDER) == kit.contents(run_dir)
    assert hub.count("GET", f"/tree/{hub.datasets[kit.REPO].head}") > 3


def test_a_download_that_breaks_off_goes_on_where_it_was(
    hub: Any, remote: HuggingFaceRemote, run_dir: Path, elsewhere: Path, kit: Any
) -> None:
    push(remote, run_dir)
    hub.drops["net_model.pt"] = 2
    pull(remote, kit.FOLDER, elsewhere)
    assert kit.contents(elsewhere / kit.FOLDER) == kit.contents(run_dir)
    assert hub.drops["net_model.pt"] == 0


def test_a_pull_that_fails_resumes_with_the_files_that_had_arrived(
    hub: Any, remote: HuggingFaceRemote, run_dir: Path, elsewhere: Path, kit: Any
) -> None:
    push(remote, run_dir)
    hub.errors["net_model.pt"] = (403, 1000)
    with pytest.raises(RemoteError):
        pull(remote, kit.FOLDER, elsewhere)
    assert not (elsewhere / kit.FOLDER).exists()  # no half of a run
    arrived = [p for p in (elsewhere / ".hub").rglob("*") if p.name == "ppo_cartpole_t0_spec.json"]
    assert arrived
    hub.errors.clear()
    hub.requests.clear()
    pull(remote, kit.FOLDER, elsewhere)
    assert kit.contents(elsewhere / kit.FOLDER) == kit.contents(run_dir)
    assert not hub.count("GET", "/ppo_cartpole_t0_spec.json")  # it was there


def test_an_upload_that_breaks_off_is_taken_up_again(
    hub: Any, remote: HuggingFaceRemote, run_dir: Path, kit: Any
) -> None:
    hub.drops["/storage/"] = 1
    push(remote, run_dir)
    assert f"data/{kit.FOLDER}/manifest.json" in hub.datasets[kit.REPO].tree


def test_what_a_failed_push_had_stored_is_not_sent_again(
    hub: Any, remote: HuggingFaceRemote, run_dir: Path, kit: Any
) -> None:
    hub.errors["/commit/"] = (503, 1000)
    with pytest.raises(RemoteError, match=r"the hub answered 503.*what has arrived is kept"):
        push(remote, run_dir)
    assert not any(kit.FOLDER in path for path in hub.datasets[kit.REPO].tree)
    hub.errors.clear()
    stored = hub.received_bytes
    assert stored > 5120
    push(remote, run_dir)
    assert hub.received_bytes == stored


def test_a_push_whose_answer_was_lost_is_known_as_our_own(
    hub: Any, remote: HuggingFaceRemote, run_dir: Path, kit: Any
) -> None:
    push(remote, run_dir)
    log = run_dir / "log" / "ppo_cartpole_t0.log"
    log.write_text("one\n")
    hub.lost["/commit/"] = 1
    with pytest.raises(RemoteError, match="run the command again"):
        push(remote, run_dir)
    assert hub.datasets[kit.REPO].tree[f"data/{kit.FOLDER}/log/{log.name}"].content == b"one\n"
    log.write_text("two\n")
    assert push(remote, run_dir).files == 1


@pytest.mark.parametrize("status", [500, 502, 429])
def test_a_hub_in_trouble_is_told_without_a_traceback(
    hub: Any, remote: HuggingFaceRemote, status: int
) -> None:
    hub.errors["/tree/"] = (status, 1000)
    with pytest.raises(RemoteError, match=str(status)):
        remote.folders()


def test_a_push_that_another_got_in_front_of_is_tried_again(
    hub: Any, remote: HuggingFaceRemote, run_dir: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slm_lab.hub.huggingface.time.sleep", lambda seconds: None)
    hub.errors["/commit/"] = (412, 2)
    push(remote, run_dir)
    assert f"data/{kit.FOLDER}/manifest.json" in hub.datasets[kit.REPO].tree


def test_trouble_that_passes_is_not_even_noticed(
    hub: Any, remote: HuggingFaceRemote, run_dir: Path, kit: Any
) -> None:
    push(remote, run_dir)
    hub.errors["/tree/"] = (503, 2)
    assert remote.folders() == [kit.FOLDER]


def test_a_hub_that_cannot_be_reached_is_named(
    hub: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(RemoteError, match=r"127\.0\.0\.1:1/datasets.*HF_ENDPOINT"):
        HuggingFaceRemote(kit.REPO).folders()


def test_content_of_another_checksum_is_thrown_away(
    hub: Any, remote: HuggingFaceRemote, run_dir: Path, elsewhere: Path, kit: Any
) -> None:
    push(remote, run_dir)
    hub.lies["net_model.pt"] = b"!" * 5120
    with pytest.raises(RemoteError, match=r"net_model\.pt arrived damaged"):
        pull(remote, kit.FOLDER, elsewhere)
    assert not (elsewhere / kit.FOLDER).exists()
    assert not list(elsewhere.rglob("*net_model.pt"))
    hub.lies.clear()
    pull(remote, kit.FOLDER, elsewhere)
    assert kit.contents(elsewhere / kit.FOLDER) == kit.contents(run_dir)


def test_a_pull_sees_one_moment_of_a_folder_that_is_pushed_meanwhile(
    hub: Any, remote: HuggingFaceRemote, run_dir: Path, elsewhere: Path, kit: Any
) -> None:
    push(remote, run_dir)
    before = kit.contents(run_dir)

    def push_once(done: int, total: int) -> None:
        log = run_dir / "log" / "ppo_cartpole_t0.log"
        if log.read_text().startswith("a line"):
            log.write_text("overwritten\n")
            push(remote, run_dir)

    pull(remote, kit.FOLDER, elsewhere, progress=push_once)
    assert kit.contents(elsewhere / kit.FOLDER) == before


@pytest.mark.parametrize(
    "name",
    [
        "../evil.txt",
        "info/../../evil.txt",
        "/etc/evil.txt",
        "info//evil.txt",
        "..\\evil.txt",
        "C:evil.txt",
        "nul\0byte",
        "info/con.txt",
        "line\nbreak",
        "\u202etxt.exe",
        "trailing.",
        "a/" * 40 + "deep",
        "x" * 300,
    ],
)
def test_a_listing_with_a_name_that_leads_out_is_refused_whole(
    hub: Any, remote: HuggingFaceRemote, elsewhere: Path, kit: Any, name: str
) -> None:
    dataset = hub.datasets[kit.REPO]
    dataset.put("data/evil/evil_spec.json", b"{}")
    dataset.put(f"data/evil/{name}", b"gotcha")
    with pytest.raises(RemoteError, match="evil: holds"):
        pull(remote, "evil", elsewhere, force=True)
    written = [path for path in elsewhere.parent.rglob("*") if path.is_file()]
    assert written == [elsewhere / ".hub" / "lock" / "evil"]


@pytest.mark.parametrize("pair", [("A.txt", "a.txt"), ("straße", "STRASSE"), ("é", "e\u0301")])
def test_names_that_are_one_file_elsewhere_are_refused(
    hub: Any, remote: HuggingFaceRemote, elsewhere: Path, kit: Any, pair: tuple[str, str]
) -> None:
    for name in pair:
        hub.datasets[kit.REPO].put(f"data/evil/{name}", b"x")
    with pytest.raises(RemoteError, match="one file where case"):
        pull(remote, "evil", elsewhere)


def test_a_hostile_manifest_names_nothing_outside(
    hub: Any, remote: HuggingFaceRemote, elsewhere: Path, kit: Any
) -> None:
    from slm_lab.hub.remote import manifest_bytes
    from slm_lab.runs.checkpoint_manifest import FileEntry

    manifest = manifest_bytes({"../../evil.txt": FileEntry(1, "0" * 64)})
    hub.datasets[kit.REPO].put("data/evil/manifest.json", manifest)
    with pytest.raises(RemoteError, match="leads out of the folder"):
        pull(remote, "evil", elsewhere)
    hub.datasets[kit.REPO].put("data/evil/manifest.json", b'{"files": {}}')
    with pytest.raises(RemoteError, match=r"manifest\.json cannot be used"):
        pull(remote, "evil", elsewhere)


@pytest.mark.parametrize("name", ["..", ".", ".hub", "a/b", "a\\b", "", "x\0", "aux"])
def test_a_folder_of_such_a_name_is_refused(
    remote: HuggingFaceRemote, elsewhere: Path, name: str
) -> None:
    with pytest.raises(RemoteError, match="not a run folder's name"):
        pull(remote, name, elsewhere)


@pytest.mark.parametrize("repo", ["a/b/c", "with space/x", "--bad--", "x" * 200])
def test_a_name_that_is_no_dataset_is_explained(hub: Any, repo: str) -> None:
    with pytest.raises(NotAllowed, match=r"HF_REPO \(or --repo\).*user/name.*file:PATH"):
        open_remote(repo)


def test_without_the_library_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(NotAllowed, match="pip install huggingface_hub"):
        open_remote("team/runs")
