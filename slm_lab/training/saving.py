"""Saving a session: when it is due, which files it writes, and how a resume reads them back."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import safetensors.torch
import torch
from loguru import logger
from safetensors import SafetensorError
from torch import Tensor, nn

from slm_lab.agent.agent import Agent
from slm_lab.agent.saving import StateDicts, save_models, snapshot
from slm_lab.runs.checkpoint_manifest import CheckpointError, CheckpointManifest
from slm_lab.runs.files import open_for_reading
from slm_lab.runs.find import SAFETENSORS
from slm_lab.runs.layout import RunLayout
from slm_lab.runs.provenance import versions
from slm_lab.runs.resume import earlier_specs, spec_sha256
from slm_lab.spec import Spec
from slm_lab.spec.run_folder import RunFolderError
from slm_lab.training.checkpoint import CheckpointStore, Slot, State, has_rings
from slm_lab.training.loop import Loop

# Without `meta.checkpoint_frequency` a session saves itself this often, and more seldom where
# saving takes longer: it may cost 1 % of the training time.
SAVE_EVERY_SECONDS = 20.0
SAVE_SHARE = 0.01

EXPERIENCE = "experience"  # a replay makes it nearly all of the bytes

READ_BYTES = 1 << 20


class SaveSchedule:
    """When the next save is due (by the clock, or every `every_frames`), and what saves cost."""

    def __init__(
        self, every_frames: int | None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._every_frames, self._clock = every_frames, clock
        self.saves, self.seconds, self.last_seconds = 0, 0.0, 0.0
        self.bytes = 0  # of the latest checkpoint
        self.plan(0)

    def plan(self, frame: int, cost: float = 0.0) -> None:
        """Decide on the next save; `cost` is the seconds that the last one took."""
        self._at = self._clock() + max(SAVE_EVERY_SECONDS, cost / SAVE_SHARE)
        every = self._every_frames
        self._at_frame = None if every is None else (frame // every + 1) * every

    def is_due(self, frame: int, now: float) -> bool:
        return now >= self._at if self._at_frame is None else frame >= self._at_frame

    def saved(self, frame: int, seconds: float) -> None:
        self.saves += 1
        self.seconds += seconds
        self.last_seconds = seconds
        self.plan(frame, seconds)

    def describe(self, training_seconds: float) -> str:
        # The training clock had stopped before the last save.
        share = self.seconds / max(training_seconds + self.last_seconds, 1e-9)
        return (
            f"saved {self.saves} time(s) in {self.seconds:.2f} s, {share:.1%} of its time; "
            f"a checkpoint takes {self.bytes / 1e6:.1f} MB"
        )


class SessionSaver:
    """Writes the models and checkpoints of a session; owns the best agent so far. A file that
    cannot be written is named in a warning, and training continues."""

    def __init__(
        self, spec: Spec, layout: RunLayout, trial: int, session: int, agent: Agent, loop: Loop
    ) -> None:
        self._layout, self._trial, self._session = layout, trial, session
        self._agent, self._loop = agent, loop
        self._store = CheckpointStore(
            layout.checkpoint_dir(trial, session),
            layout.session_name(trial, session),
            spec_sha256(spec),
            run_dir=layout.predir,
            earlier=earlier_specs(spec),
        )
        self._earlier = earlier_specs(spec)
        self.schedule = SaveSchedule(spec.meta.checkpoint_frequency)
        self.complete_at: int | None = None  # the frame at which everything was written
        self.keep_best()

    def keep_best(self, best: dict[str, Any] | None = None) -> None:
        """Remember the agent as it is now, or a restored one, as the best so far."""
        self.best = best or {
            "models": snapshot(self._agent),
            "agent": self._agent.state_dict(),
            "counters": self._counters(),
        }
        self._best_is_saved = False

    def save(
        self, state_dict: Callable[[], dict[str, Any]], tables: Callable[[], bool] | None = None
    ) -> None:
        """Write models and checkpoints; with `tables`, which writes them, everything.

        The checkpoint to continue from comes last. After a kill at any earlier step, a resume
        continues from the checkpoint before it and writes all other files again. Therefore the
        checkpoint says `finished` only when nothing is left to write.
        """
        began, frame = time.perf_counter(), self._loop.clock.frame
        best = self.best
        is_saved = self._best_is_saved or self._write("best", best["agent"], best["counters"])
        is_saved = self._best_is_saved = is_saved & self.save_models()
        if tables is not None:
            is_saved &= tables()
        is_finished = tables is not None and is_saved and self._loop.is_over
        is_saved &= self._save_last(state_dict(), finished=is_finished)
        if tables is not None and is_saved:
            self.complete_at = frame
        spent = time.perf_counter() - began
        self.schedule.saved(frame, spent)
        size = f"{self.schedule.bytes / 1e6:.1f} MB in {spent:.2f} s"
        logger.debug(f"Session {self._session} saved at frame {frame:,}: {size}")

    def save_models(self, *, latest: bool = True) -> bool:
        """Write the nets as plain state dicts: the latest, and the best unless on disk already."""
        models = {False: snapshot(self._agent)} if latest else {}
        if not self._best_is_saved:
            models[True] = self.best["models"]
        try:
            for is_best, states in models.items():
                save_models(states, self._layout, self._trial, self._session, best=is_best)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            logger.warning(f"{self._layout.predir / 'model'}: models not written ({error})")
            return False
        return True

    def restore(self, load: Callable[[dict[str, Any]], None], max_bytes: int) -> bool:
        """Pass the last good checkpoint to `load`; False if there never was one."""
        found = self._store.read("last", max_bytes=max_bytes)
        if found is None:
            return False
        manifest, state = found
        try:
            if manifest.spec_sha256 in self._earlier:  # why it ended then holds no longer
                state["loop"]["stop_reason"] = None
            load(state)
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError, OverflowError) as error:
            reason = f"the state does not fit this spec ({error!r:.300})"
            raise CheckpointError(self._store.folder, reason) from error
        _warn_of_other_versions(manifest)
        self.schedule.plan(self._loop.clock.frame)
        return True

    def _save_last(self, state: dict[str, Any], *, finished: bool) -> bool:
        counters = self._counters()
        # Only more frames would need the experience. A rollout is kept for them; a replay would
        # fill the disk, and fills again from new steps.
        if self._loop.is_over and has_rings(state):
            state.pop(EXPERIENCE)
            # Written twice, so that the fallback checkpoint holds no replay either.
            if not self._write("last", state, counters):
                return False
        return self._write("last", state, counters, finished=finished)

    def _write(self, slot: Slot, state: State, counters: dict[str, int], **flags: bool) -> bool:
        try:
            reason = self._loop.stop_reason or ""
            manifest = self._store.write(slot, state, counters, stop_reason=reason, **flags)
        except OSError as error:
            where, kept = error.filename or self._store.folder, "the one before it is kept"
            logger.warning(f"{where}: checkpoint not written ({error.strerror or error}), {kept}")
            return False
        if slot == "last":
            self.schedule.bytes = manifest.size
        return True

    def _counters(self) -> dict[str, int]:
        clock = self._loop.clock
        return {"frame": clock.frame, "opt_step": clock.opt_step, "updates": clock.updates}


def _warn_of_other_versions(manifest: CheckpointManifest) -> None:
    now = versions()
    before = manifest.versions.items()
    if changed := [f"{k} {was} -> {now.get(k, 'none')}" for k, was in before if now.get(k) != was]:
        logger.warning(
            f"resuming under other versions ({', '.join(changed)}): "
            "the rest of the run may differ from an uninterrupted one in the last digits"
        )


def warn_of_unmoved_parameters(agent: Agent, before: StateDicts) -> None:
    """Warn of parameters that the first updates left unchanged: no loss depends on them."""
    for name, module in agent.algorithm.modules.items():
        first = before[f"{name}_model"]
        unmoved = [k for k, v in module.named_parameters() if torch.equal(v.cpu(), first[k])]
        if unmoved:
            logger.warning(f"{name}: the first updates did not move {', '.join(unmoved)}")


def load_model(path: Path, *, folder: Path | None = None) -> dict[str, Tensor]:
    """Load plain tensors by name from a file of unknown origin, or raise a RunFolderError. Nothing
    in it is executed, and reading takes no more memory than the file has bytes."""
    with open_for_reading(folder or path.parent, path) as file:
        if path.suffix == SAFETENSORS:
            return _load_safetensors(path, file.read())
        _check_archive(path, file)
        file.seek(0)
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged or hostile pickle raises nearly anything
            reason = str(error).strip().partition("\n")[0][:200]
            raise RunFolderError(
                f"{path}: refused by torch's weights-only reader, which takes plain tensors and "
                f"runs no code ({type(error).__name__}: {reason}). Expected a state dict."
            ) from None
    if not isinstance(state, dict):
        raise RunFolderError(f"{path}: holds a {type(state).__name__}, expected a state dict.")
    for name, tensor in state.items():
        if not isinstance(name, str) or not _is_plain(tensor):
            raise RunFolderError(
                f"{path}: `{name!s:.80}` is no plain tensor. Expected a state dict."
            )
        # A view may repeat one stored number to any shape, until somebody copies it.
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise RunFolderError(
                f"{path}: `{name:.80}` claims a shape of {list(tensor.shape)}, more numbers than "
                "the file holds. Not loaded."
            )
    return state


def _load_safetensors(path: Path, content: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise RunFolderError(f"{path}: is no file of safetensors ({error!s:.200}).") from None


def _is_plain(value: object) -> bool:
    """Whether a value is a dense tensor of real numbers in memory."""
    return (
        isinstance(value, Tensor)
        and type(value) in (Tensor, nn.Parameter)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not (value.is_quantized or value.is_complex())
    )


def _check_archive(path: Path, file: IO[bytes]) -> None:
    """Refuse a file that torch.save did not write, or that has changed since.

    torch saves an uncompressed zip; a compressed one could unfold to any size. torch's reader
    ignores the checksums in it: a flipped bit would load as other weights.
    """
    try:
        size = file.seek(0, os.SEEK_END)
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > size:
                raise RunFolderError(f"{path}: would unfold to more than its own size. Not loaded.")
            for entry in entries:
                with archive.open(entry) as member:
                    while member.read(READ_BYTES):  # the end compares the checksum
                        pass
    except RunFolderError:
        raise
    except Exception as error:  # a damaged zip raises nearly anything
        raise RunFolderError(
            f"{path}: cannot be read as a file of torch.save ({error!s:.200}). It is damaged, or "
            "only partly downloaded: copy it again, or use another session's."
        ) from None
