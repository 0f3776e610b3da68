"""A dataset on a Hugging Face hub as a remote; the only user of `huggingface_hub`."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from slm_lab.hub.remote import (
    DATA,
    NotAllowed,
    RemoteError,
    RemoteFile,
    Sent,
    check_files,
    check_folder,
)

THREADS = 4
COMMIT_ATTEMPTS = 5
BATCH_BYTES = 8_000_000  # of one batch of files, after which progress is reported
KEPT = "what has arrived is kept."


class HuggingFaceRemote:
    """Run folders under `data/` of a dataset. One upload is one commit, so it is seen whole."""

    def __init__(self, repo: str) -> None:
        self._hub = _library()
        self._dataset = {"repo_id": repo, "repo_type": "dataset"}
        self._token = os.environ.get("HF_TOKEN", "").strip() or None
        endpoint = os.environ.get("HF_ENDPOINT", "").strip() or None
        self._api = self._hub.HfApi(endpoint=endpoint, token=self._token, library_name="slm-lab")
        with self._explained():
            self._hub.utils.validate_repo_id(repo)

    @property
    def label(self) -> str:
        return f"{self._api.endpoint}/datasets/{self._dataset['repo_id']}"

    def folders(self) -> list[str]:
        with self._explained():
            entries = self._entries(DATA)
        paths = [entry.path for entry in entries if isinstance(entry, self._hub.hf_api.RepoFolder)]
        return sorted(path.removeprefix(f"{DATA}/") for path in paths)

    def files(self, folder: str) -> dict[str, RemoteFile]:
        check_folder(folder)
        where = f"{DATA}/{folder}"
        with self._explained():
            # One commit for the listing and what is downloaded later: a run may go on syncing.
            commit = self._api.repo_info(**self._dataset).sha
            entries = self._entries(where, recursive=True, revision=commit)
        files = {
            entry.path.removeprefix(f"{where}/"): RemoteFile(
                entry.size, entry.lfs.sha256 if entry.lfs else entry.blob_id, commit
            )
            for entry in entries
            if isinstance(entry, self._hub.hf_api.RepoFile)
        }
        check_files(folder, files)
        return files

    def _entries(self, where: str, **how: Any) -> list[Any]:
        """List a folder of the dataset; nothing if there is none."""
        try:
            return list(self._api.list_repo_tree(path_in_repo=where, **how, **self._dataset))
        except self._hub.errors.EntryNotFoundError:
            return []

    def download(self, folder: str, name: str, file: RemoteFile, target: Path, temp: Path) -> None:
        """Download a file; the library resumes after a broken connection."""
        path, where = f"{DATA}/{folder}/{name}", {"revision": file.version, "local_dir": temp}
        with self._explained():
            arrived = self._api.hf_hub_download(filename=path, **where, **self._dataset)
        shutil.move(arrived, target)

    def check_upload(self) -> None:
        """Check access, and create the dataset as a private one if it is missing."""
        if not (self._token or self._hub.get_token()):
            raise NotAllowed(
                f"{self.label}: HF_TOKEN is not set, and an upload needs one. Put "
                f"HF_TOKEN=hf_... in .env, with a token that may write "
                f"({self._api.endpoint}/settings/tokens)."
            )
        with self._explained():
            try:
                self._api.repo_info(**self._dataset)
            except self._hub.errors.RepositoryNotFoundError:
                self._api.create_repo(private=True, exist_ok=True, **self._dataset)

    def upload(
        self, folder: str, files: Mapping[str, Path], gone: Collection[str], sent: Sent
    ) -> None:
        check_folder(folder)
        check_files(folder, files)
        add, remove = self._hub.CommitOperationAdd, self._hub.CommitOperationDelete
        where = f"{DATA}/{folder}"

        def send(batch: list[Any]) -> None:
            # Large files go to storage now, the small ones with the commit below. A file in
            # storage is not sent again, so an interrupted upload resumes.
            how = {"num_threads": 1, "free_memory": False}
            self._api.preupload_lfs_files(additions=batch, **how, **self._dataset)
            sent(sum(addition.upload_info.size for addition in batch))

        with self._explained():
            additions = [add(f"{where}/{name}", path) for name, path in files.items()]
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(send, _batches(additions)))
            removals = [remove(f"{where}/{name}") for name in gone]
            self._commit([*additions, *removals], f"slm-lab push {folder}")

    def _commit(self, operations: list[Any], message: str) -> None:
        """Commit, and try again if another run of the same dataset came first."""
        commit = {"operations": operations, "commit_message": message, **self._dataset}
        for attempt in range(COMMIT_ATTEMPTS):
            try:
                self._api.create_commit(**commit)
                return
            except self._hub.errors.HfHubHTTPError as error:
                is_race = error.response is not None and error.response.status_code in (409, 412)
                if not is_race or attempt == COMMIT_ATTEMPTS - 1:
                    raise
                # A generator of its own: the global one may be that of an env in this process.
                time.sleep(random.Random().uniform(0, 2.0**attempt))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Make a RemoteError with a fix, and without the token, of an error of the library."""
        try:
            yield
        except Exception as error:
            explained = self._explanation(error)
            if explained is None:
                raise
            raise explained from None

    def _explanation(self, error: BaseException) -> RemoteError | None:
        errors = self._hub.errors
        if isinstance(error, RemoteError):
            return None
        if isinstance(error, RuntimeError) and error.__cause__ is not None:
            return self._explanation(error.__cause__)  # wrapped around the error of one file
        if isinstance(error, errors.HFValidationError):
            expected = "a dataset such as `user/name`, or `file:PATH` for a directory"
            repo = self._dataset["repo_id"]
            return NotAllowed(f"HF_REPO (or --repo): found `{repo}`, expected {expected}.")
        if isinstance(error, errors.RepositoryNotFoundError):
            return NotAllowed(
                f"{self.label}: no such dataset, or a private one. Check HF_REPO (or --repo); a "
                "private one needs HF_TOKEN in .env."
            )
        if isinstance(error, errors.HfHubHTTPError):
            return self._http_error(error)
        # Its HTTP library has changed its name before (requests, httpx, httpx2).
        is_network = type(error).__module__.startswith(("http", "requests"))
        if not is_network and not isinstance(error, OSError | ValueError):
            return None
        return RemoteError(
            f"{self.label}: {self._clean(error) or type(error).__name__}. Check the network and "
            f"HF_ENDPOINT, then run the command again: {KEPT}"
        )

    def _http_error(self, error: Any) -> RemoteError:
        status = error.response.status_code if error.response is not None else 0
        found = self._clean(error)
        fixes = {
            401: "HF_TOKEN was not accepted. Renew it, or remove it to read what is public "
            f"({self._api.endpoint}/settings/tokens).",
            403: "HF_TOKEN does not allow this. Use a token with write access to the dataset, "
            "or your own dataset with HF_REPO=user/name.",
        }
        if status in fixes:
            return NotAllowed(f"{self.label}: {status}. {fixes[status]}")
        if status == 429:
            found = "429, too many requests. Wait some minutes."
        elif status >= 500:
            found = f"the hub answered {status}. Run the command again later: {KEPT}"
        return RemoteError(f"{self.label}: {found}")

    def _clean(self, error: BaseException) -> str:
        """The text of an error on one line, without control characters and the token."""
        text = "".join(c if c.isprintable() else " " for c in str(error))
        text = " ".join(text.split())
        return (text.replace(self._token, "***") if self._token else text)[:300]


def _batches(additions: list[Any]) -> list[list[Any]]:
    batches: list[list[Any]] = []
    bytes_left = 0
    for addition in sorted(additions, key=lambda addition: addition.upload_info.size):
        size = addition.upload_info.size
        if size > bytes_left or not batches:
            batches.append([])
            bytes_left = BATCH_BYTES
        batches[-1].append(addition)
        bytes_left -= size
    return batches


def _library() -> Any:
    try:
        hub: Any = import_module("huggingface_hub")
        for part in ("errors", "hf_api", "utils"):
            import_module(f"huggingface_hub.{part}")
    except ImportError as error:
        if (error.name or "").split(".")[0] != "huggingface_hub":
            raise
        raise NotAllowed(
            "HF_REPO: a Hugging Face dataset needs huggingface_hub, which is not installed: "
            "pip install huggingface_hub (a directory, HF_REPO=file:PATH, works without)."
        ) from None
    hub.utils.disable_progress_bars()  # the commands show their own
    hub.utils.logging.set_verbosity_error()
    return hub
