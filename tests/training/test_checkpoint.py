"""A checkpoint: what goes in comes out, whatever happens to the process or to its files."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from loguru import logger

from slm_lab.agent.memory.ring import Ring
from slm_lab.runs.checkpoint_manifest import CheckpointError, read_manifest
from slm_lab.training import checkpoint
from slm_lab.training.checkpoint import CheckpointStore, check_fits, read_checkpoint
from tests.killing import killed_at

LIMIT = 10**8
STATE: dict[str, Any] = {
    "weights": {"net": torch.arange(6.0).view(2, 3), "step": torch.tensor(7)},
    "flags": torch.tensor([True, False]),
    "rng": np.random.default_rng(3).bit_generator.state,  # integers of 128 bits
    "actions": [np.zeros((0,)), np.array([[0.5]], np.float32)],
    "loss": math.nan,
    "none": None,
    "text": "naïve",
}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "s0", "tiny_t0_s0", "abc")


@pytest.fixture
def said() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logger.add(lambda message: lines.append(str(message)), level="WARNING")
    yield lines
    logger.remove(handler)


def write(store: CheckpointStore, frame: int, state: Any = None) -> Path:
    store.write("last", STATE if state is None else state, {"frame": frame})
    return store.folder / "last"


def frame_of(store: CheckpointStore) -> int | None:
    found = store.read("last", max_bytes=LIMIT)
    return None if found is None else found[0].frame


def test_what_goes_in_comes_out(store):
    _, state = read_checkpoint(write(store, 5), max_bytes=LIMIT)
    assert torch.equal(state["weights"]["net"], STATE["weights"]["net"])
    assert state["weights"]["step"].shape == ()
    assert state["flags"].dtype == torch.bool
    assert state["rng"] == STATE["rng"]
    np.random.default_rng(0).bit_generator.state = state["rng"]
    assert isinstance(state["actions"][1], np.ndarray)
    assert [(a.shape, a.dtype) for a in state["actions"]] == [((0,), "f8"), ((1, 1), "f4")]
    assert math.isnan(state["loss"])
    assert state["none"] is None
    assert state["text"] == "naïve"


def test_the_manifest_says_what_is_there(store):
    folder = write(store, 5)
    manifest = read_manifest(folder)
    assert (manifest.session, manifest.spec_sha256, manifest.frame) == ("tiny_t0_s0", "abc", 5)
    assert manifest.versions["torch"] == version("torch")
    assert set(manifest.files) == {"state.json", "tensors.safetensors"}
    for name, entry in manifest.files.items():
        content = (folder / name).read_bytes()
        assert (entry.size, entry.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_the_one_before_is_kept_and_no_third(store):
    for frame in (1, 2, 3):
        write(store, frame)
    assert sorted(path.name for path in store.folder.iterdir()) == ["last", "last-1"]
    assert frame_of(store) == 3
    assert read_manifest(store.folder / "last-1").frame == 2


def test_without_any_checkpoint_there_is_nothing_to_read(store):
    assert frame_of(store) is None


def test_a_checkpoint_of_another_spec_is_refused(store):
    write(store, 1)
    other = CheckpointStore(store.folder, "tiny_t0_s0", "xyz")
    with pytest.raises(CheckpointError, match="another spec"):
        other.read("last", max_bytes=LIMIT)
    assert frame_of(store) == 1  # and stays as it is


# Rings


def ring(written: int, slots: int = 8, **options: Any) -> Ring:
    """Row n holds n, as far as the ring remembers."""
    number = torch.zeros(slots, dtype=torch.int64)
    for n in range(written):
        number[n % slots] = n
    return Ring({"number": number, "pair": number.float().repeat(2, 1).T}, written, **options)


def rows_of(store: CheckpointStore, slots: int = 8) -> list[int]:
    found = store.read("last", max_bytes=LIMIT)
    assert found is not None
    columns = {"number": torch.full((slots,), -1), "pair": torch.zeros(slots, 2)}
    stored = found[1]["replay"]
    stored.copy_into(columns)
    assert torch.equal(columns["pair"][:, 1], columns["number"].float().clamp_min(0))
    oldest = max(0, stored.written - slots)
    return [int(columns["number"][n % slots]) for n in range(oldest, stored.written)]


def chunks(folder: Path) -> list[tuple[int, int]]:
    layout = json.loads((folder / "state.json").read_text())["rings"]["replay"]["chunks"]
    return [(start, stop) for start, stop, _ in layout]


@pytest.mark.parametrize("written", [0, 1, 7, 8, 9, 16, 21])
def test_a_ring_comes_back_from_one_checkpoint(store, written):
    write(store, 1, {"replay": ring(written)})
    assert rows_of(store) == list(range(max(0, written - 8), written))


def test_a_ring_comes_back_from_many_checkpoints(store):
    for written in (0, 2, 3, 3, 7, 10, 11, 12, 30, 31, 40):
        write(store, written, {"replay": ring(written)})
        assert rows_of(store) == list(range(max(0, written - 8), written))


def test_only_new_rows_are_written_and_small_chunks_join(store):
    folder = store.folder / "last"
    written = [64, 68, 72, 76, 80]
    found = []
    for n in written:
        write(store, n, {"replay": ring(n, slots=1000)})
        found.append(chunks(folder))
    # Each builds on the one two before it, which it replaces: 64 -> 72 -> 80, 68 -> 76.
    assert found == [
        [(0, 64)],
        [(0, 68)],
        [(0, 64), (64, 72)],
        [(0, 68), (68, 76)],
        [(0, 64), (64, 80)],
    ]


def test_a_checkpoint_shares_rows_with_the_one_it_replaced_and_none_with_its_fallback(store):
    for n in (64, 68, 72):
        write(store, n, {"replay": ring(n, slots=1000)})
    newest, older = store.folder / "last", store.folder / "last-1"
    inodes = [
        {path.stat().st_ino for path in folder.glob("replay-*")} for folder in (newest, older)
    ]
    assert inodes[0].isdisjoint(inodes[1])


def test_large_chunks_are_left_alone(store, monkeypatch):
    monkeypatch.setattr(checkpoint, "MAX_CHUNK_BYTES", 16 * 10)  # ten rows
    for n in (25, 30, 55):
        write(store, n, {"replay": ring(n, slots=1000)})
    assert chunks(store.folder / "last") == [
        (0, 10), (10, 20), (20, 25), (25, 35), (35, 45), (45, 55)
    ]  # fmt: skip
    assert rows_of(store, slots=1000) == list(range(55))


def test_rows_that_changed_are_written_again(store):
    for n in (5, 6):
        write(store, n, {"replay": ring(n)})
    write(store, 7, {"replay": ring(7, generation=1)})
    assert chunks(store.folder / "last") == [(0, 7)]


def test_a_file_system_without_links_gets_copies(store, monkeypatch):
    def no_links(*_: Any) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    for n in (64, 68, 72):
        write(store, n, {"replay": ring(n, slots=1000)})
    assert rows_of(store, slots=1000) == list(range(72))


# Damage


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("damage", [flip_a_bit, truncate, empty, Path.unlink])
@pytest.mark.parametrize("file", ["manifest.json", "state.json", "tensors.safetensors", "replay-*"])
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_used(store, said, file, damage):
    for frame in (10, 20, 30):
        write(store, frame, {**STATE, "replay": ring(frame)})
    (path,) = list((store.folder / "last").glob(file))[:1]
    damage(path)
    assert frame_of(store) == 20
    assert any(path.name in line and "damaged checkpoint" in line for line in said)
    assert any("frame 20" in line for line in said)
    # Going on, the damaged one never pushes out the good one.
    write(store, 40, {**STATE, "replay": ring(40)})
    assert read_manifest(store.folder / "last-1").frame == 20
    assert frame_of(store) == 40
    assert rows_of(store) == list(range(32, 40))


def test_after_damage_too_a_checkpoint_shares_no_rows_with_its_fallback(store):
    """The fallback stays where it is, so that its chunks are not free to be taken over."""
    for n in (64, 68):
        write(store, n, {"replay": ring(n, slots=1000)})
    flip_a_bit(store.folder / "last" / "tensors.safetensors")
    assert frame_of(store) == 64
    newest = write(store, 72, {"replay": ring(72, slots=1000)})
    (chunk, *_) = sorted(newest.glob("replay-*"))
    flip_a_bit(chunk)
    assert frame_of(store) == 64
    assert rows_of(store, slots=1000) == list(range(64))


def test_when_both_are_damaged_nothing_is_made_up(store):
    for frame in (1, 2):
        write(store, frame)
    for folder in ("last", "last-1"):
        flip_a_bit(store.folder / folder / "tensors.safetensors")
    with pytest.raises(CheckpointError, match=r"no good checkpoint is left .*tensors.safetensors"):
        store.read("last", max_bytes=LIMIT)


@pytest.mark.parametrize("name", ["state.json", "manifest.json"])
def test_every_single_bit_counts(store, name):
    path = write(store, 1, {"a": [1, 2], "text": "x"}) / name
    content = path.read_bytes()
    for i in range(len(content)):
        path.write_bytes(content[:i] + bytes([content[i] ^ 4]) + content[i + 1 :])
        with pytest.raises(CheckpointError):
            read_checkpoint(store.folder / "last", max_bytes=LIMIT)


# Failing writes


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Writes beyond it fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_checkpoints_as_they_were(store):
    for frame in (1, 2):
        write(store, frame)
    with file_size_limit(4096), pytest.raises(OSError, match="File too large"):
        write(store, 3, {"weights": torch.zeros(10_000)})
    assert sorted(path.name for path in store.folder.iterdir()) == ["last", "last-1"]
    assert frame_of(store) == 2
    write(store, 4)
    assert frame_of(store) == 4


STEPS = ("fsync", "link", "rename", "mkdir", "unlink", "rmdir")


@contextmanager
def failing(at: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The `at`-th change of the file system does not happen: an error, as from a dying disk."""
    count = [0]

    def wrap(original: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            count[0] += 1
            if count[0] == at:
                raise OSError(5, "Input/output error")
            return original(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, wrap(getattr(os, name)))
        yield count


def test_a_write_that_fails_anywhere_leaves_a_good_checkpoint(tmp_path, monkeypatch):
    with failing(10**9, monkeypatch) as count:  # how many steps are there?
        reference = CheckpointStore(tmp_path / "reference", "s", "abc")
        for frame in (1, 2, 3):
            write(reference, frame, {"replay": ring(frame)})
        steps = count[0]
        write(reference, 4, {"replay": ring(4)})
        steps = count[0] - steps
    assert steps > 10
    for at in range(1, steps + 1):
        store = CheckpointStore(tmp_path / str(at), "s", "abc")
        for frame in (1, 2, 3):
            write(store, frame, {"replay": ring(frame)})
        with suppress(OSError), failing(at, monkeypatch):  # rmtree may also pass over it
            write(store, 4, {"replay": ring(4)})
        assert frame_of(store) in (3, 4)
        write(store, 5, {"replay": ring(5)})
        assert frame_of(store) == 5
        assert rows_of(store) == [0, 1, 2, 3, 4]


def test_a_lone_fallback_stays_until_there_is_a_newer_one(tmp_path, monkeypatch):
    """Killed between two renames, `last-1` is all there is: no write may begin with it."""
    for at in range(1, 12):
        store = CheckpointStore(tmp_path / str(at), "s", "abc")
        for frame in (1, 2):
            write(store, frame)
        (store.folder / "last").rename(store.folder / "gone")
        with suppress(OSError), failing(at, monkeypatch):
            write(store, 3)
        assert frame_of(store) in (1, 3)


@pytest.mark.slow
def test_a_kill_at_any_step_of_a_write_leaves_a_good_checkpoint(tmp_path, monkeypatch):
    """A real process, really killed, before each change that it makes to the file system."""
    at = 0
    while True:
        at += 1
        store = CheckpointStore(tmp_path / str(at), "s", "abc")
        for frame in (1, 2, 3):
            write(store, frame, {"replay": ring(frame)})
        child = os.fork()
        if child == 0:
            try:
                with killed_at(at):
                    write(store, 4, {"replay": ring(4)})
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        assert frame_of(store) in (3, 4)
        write(store, 5, {"replay": ring(5)})
        assert rows_of(store) == [0, 1, 2, 3, 4]
        if os.WIFEXITED(status):
            assert at > 10
            return


# Hostile folders


def forge(folder: Path, **changes: Any) -> None:
    """Change the manifest, and give it the checksum that fits: a liar, not a broken disk."""
    content = json.loads((folder / "manifest.json").read_text())
    content.pop("sha256")
    content |= changes
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(content | {"sha256": digest}))


def replace(folder: Path, name: str, content: bytes) -> None:
    """A file with other content, and a manifest that vouches for it."""
    (folder / name).write_bytes(content)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forge(folder, files=files | {name: entry})


def refusal(folder: Path, max_bytes: int = LIMIT) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(folder, max_bytes=max_bytes)
    return str(caught.value)


class Payload:
    """Unpickled, it would leave a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
def test_a_pickle_is_never_opened(store, tmp_path, name):
    folder, mark = write(store, 1), tmp_path / "mark"
    pickle.loads(pickle.dumps(Payload(mark)))
    assert mark.exists()
    mark.unlink()
    payload = pickle.dumps({"weights": Payload(mark)})
    if name == "manifest.json":
        (folder / name).write_bytes(payload)
    else:
        replace(folder, name, payload)
    assert name in refusal(folder)
    assert not mark.exists()


def test_an_array_of_objects_is_refused(store, tmp_path):
    folder, mark = write(store, 1), tmp_path / "mark"
    np.save(tmp_path / "objects.npy", np.array([Payload(mark)], object), allow_pickle=True)
    replace(folder, "tensors.safetensors", (tmp_path / "objects.npy").read_bytes())
    assert "tensors.safetensors" in refusal(folder)
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/../../secret", "..", ".", "", "a\\b", "a\0b", "C:x"]
)
def test_a_manifest_cannot_name_a_file_outside_its_folder(store, name):
    folder = write(store, 1)
    (folder.parent / "secret").write_text("s")
    files = json.loads((folder / "manifest.json").read_text())["files"]
    forge(folder, files=files | {name: {"size": 1, "sha256": hashlib.sha256(b"s").hexdigest()}})
    assert "no file of its folder" in refusal(folder)


def test_a_link_out_of_the_folder_is_refused(store):
    folder = write(store, 1)
    elsewhere = folder.parent / "elsewhere"
    shutil.move(folder / "tensors.safetensors", elsewhere)
    (folder / "tensors.safetensors").symlink_to(elsewhere)
    assert "no plain file" in refusal(folder)


def test_a_ring_cannot_name_a_file_that_the_manifest_does_not(store):
    folder = write(store, 9, {"replay": ring(9)})
    content = json.loads((folder / "state.json").read_text())
    content["rings"]["replay"]["chunks"] = [[0, 9, "../../secret"]]
    replace(folder, "state.json", json.dumps(content).encode())
    assert "does not fit" in refusal(folder)


@pytest.mark.parametrize("shape", [[2**60], [2**31, 2**31], [-1], [6, 1]])
def test_absurd_shapes_are_refused_before_anything_is_allocated(store, shape):
    folder = write(store, 1, {"w": torch.zeros(6, 2)})
    header = {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 48]}}
    text = json.dumps(header).encode()
    replace(folder, "tensors.safetensors", len(text).to_bytes(8, "little") + text + bytes(48))
    assert "tensors.safetensors" in refusal(folder)


def test_a_header_that_claims_the_world_is_refused(store):
    folder = write(store, 1)
    replace(folder, "tensors.safetensors", (2**62).to_bytes(8, "little") + b"{}")
    assert "tensors.safetensors" in refusal(folder)


def test_more_bytes_than_the_spec_can_need_are_refused_unread(store):
    folder = write(store, 1)
    huge = folder / "tensors.safetensors"
    os.truncate(huge, 2**40)  # a sparse file: it takes no space, and all memory
    files = json.loads((folder / "manifest.json").read_text())["files"]
    forge(folder, files=files | {"tensors.safetensors": {"size": 2**40, "sha256": "0"}})
    assert "1,099,511,6" in refusal(folder)


def test_a_manifest_or_state_too_large_is_refused_unread(store, monkeypatch):
    folder = write(store, 1)
    monkeypatch.setattr(checkpoint, "MAX_STATE_BYTES", 10)
    assert "state.json" in refusal(folder)
    os.truncate(folder / "manifest.json", 2**40)
    assert "expected 4,000,000 at most" in refusal(folder)


@pytest.mark.parametrize("text", ["[]", "3", "[" * 100_000, '{"tree": [1]}', "{}"])
def test_a_state_of_another_kind_is_refused(store, text):
    folder = write(store, 1)
    replace(folder, "state.json", text.encode())
    assert "state.json" in refusal(folder)


@pytest.mark.parametrize(
    "changes", [{"schema": 3}, {"schema": 0}, {"counters": 3}, {"files": []}, {"files": {"a": {}}}]
)
def test_a_manifest_of_another_kind_is_refused(store, changes):
    folder = write(store, 1)
    forge(folder, **changes)
    assert "manifest.json" in refusal(folder)


def test_a_checkpoint_of_an_older_schema_is_refused_and_left_in_place(store):
    folder = write(store, 1)
    forge(folder, schema=1, versions={"slm-lab": "0.0.9"})
    with pytest.raises(CheckpointError) as caught:
        store.read("last", max_bytes=LIMIT)
    assert str(caught.value) == (
        f"{folder}: was written by slm-lab 0.0.9 with schema 1; expected 2. Resume with that "
        "version, or start a new run. Its models still work in enjoy, eval and export."
    )
    assert read_manifest(folder).frame == 1


def test_a_stored_ring_must_fit_the_live_one(store):
    write(store, 9, {"replay": ring(9)})
    found = store.read("last", max_bytes=LIMIT)
    stored = found[1]["replay"]
    with pytest.raises(ValueError, match="missing"):
        stored.copy_into({"number": torch.zeros(20, dtype=torch.int64)})  # 8 rows were kept of 9
    with pytest.raises(ValueError, match="expected"):
        stored.copy_into({"number": torch.zeros(8, 3, dtype=torch.int64)})


def test_a_state_of_other_shapes_or_keys_does_not_fit():
    live = {"net": torch.zeros(3), "rates": {"lr": 0.1}}
    check_fits({"net": torch.ones(3), "rates": {"lr": 0.2}}, live)
    for wrong in (
        {"net": torch.zeros(1), "rates": {"lr": 0.1}},  # would be broadcast
        {"net": torch.zeros(3, dtype=torch.float64), "rates": {"lr": 0.1}},
        {"net": [0.0, 0.0, 0.0], "rates": {"lr": 0.1}},
        {"net": torch.zeros(3), "rates": {}},
        {"net": torch.zeros(3), "rates": 1},
    ):
        with pytest.raises(ValueError, match=r"net|rates"):
            check_fits(wrong, live)


def test_the_file_of_tensors_is_what_other_tools_read(store):
    tensors = safetensors.numpy.load_file(write(store, 1) / "tensors.safetensors")
    np.testing.assert_array_equal(tensors["weights/net"], STATE["weights"]["net"].numpy())
