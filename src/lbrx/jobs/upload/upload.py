"""``upload``: files of a model to a repository of the Hugging Face hub.

Large files are sent one by one, and then all files become one commit: readers see the old model or the new one. What
the hub has received of a stopped upload is not sent again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, UsageError
from lbrx.files.output.options import CountCallback
from lbrx.files.remote.paths import without_secrets
from lbrx.jobs.upload.checked_files import UploadedFile, checked_files

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_DEFAULT_REVISION = "main"


@dataclass(frozen=True, slots=True)
class UploadResult:
    """What was uploaded, and the address of the commit."""

    repository: str
    revision: str
    url: str
    files: tuple[UploadedFile, ...]

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)


def plan_upload(source: str | os.PathLike[str], repository: str) -> list[UploadedFile]:
    """The files that would be uploaded; raise if something is wrong with them. Nothing is sent.

    >>> from lbrx.demo.models import demo_models
    >>> [file.name for file in plan_upload(demo_models().base, "me/model")][:2]
    ['config.json', 'model.safetensors']
    """
    if not _REPOSITORY.fullmatch(repository) or "--" in repository or ".." in repository:
        raise UsageError(f"{repository!r} is not a repository of the hub; expected owner/name")
    return checked_files(Path(source))


def upload(
    source: str | os.PathLike[str],
    repository: str,
    *,
    revision: str | None = None,
    private: bool = False,
    message: str | None = None,
    token: str | None = None,
    progress: CountCallback | None = None,
) -> UploadResult:
    """Upload a model, a GGUF file with its shards, or a directory of outputs to ``owner/name`` on the hub.

    The repository is made if it does not exist, with ``private`` as a private one; so is the branch ``revision``. The
    token is ``token``, HF_TOKEN, or that of ``hf auth login``. Call it again to resume an upload that was stopped.
    ``progress`` is called with the bytes that are done, all bytes, and a name. HF_ENDPOINT is another hub.

    >>> upload("model.gguf", "no repository")
    Traceback (most recent call last):
    lbrx.errors.UsageError: 'no repository' is not a repository of the hub; expected owner/name
    """
    files = plan_upload(source, repository)
    hub = _Hub(repository, revision or _DEFAULT_REVISION, token)
    with hub.errors():
        hub.prepare(private)
        url = hub.send(files, message or f"Upload {Path(source).resolve().name}", progress)
    return UploadResult(repository, hub.revision, url, tuple(files))


class _Hub:
    """A repository and the token for it."""

    def __init__(self, repository: str, revision: str, token: str | None) -> None:
        from huggingface_hub import HfApi, constants, get_token

        self.repository, self.revision = repository, revision
        token = token or get_token()
        if constants.HF_HUB_OFFLINE:
            raise UsageError("HF_HUB_OFFLINE forbids to upload")
        if not token:
            raise UsageError("no token for the hub; set HF_TOKEN, or log in with 'hf auth login'")
        self._api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token, library_name="lbrx")

    def prepare(self, private: bool) -> None:
        """Make the repository and the branch if they do not exist."""
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            is_private = self._api.model_info(self.repository).private
        except RepositoryNotFoundError:
            self._api.create_repo(self.repository, private=private or None, exist_ok=True)
        else:
            if private and not is_private:
                raise UsageError(f"{self.repository}: exists and is public; --private cannot change that")
        if self.revision != _DEFAULT_REVISION:
            self._api.create_branch(self.repository, branch=self.revision, exist_ok=True)

    def send(self, files: list[UploadedFile], message: str, progress: CountCallback | None) -> str:
        """Send the large files, then make a commit of all; returns its address."""
        from huggingface_hub import CommitOperationAdd

        total, done = sum(file.nbytes for file in files), 0
        additions = [CommitOperationAdd(file.name, str(file.path)) for file in files]
        with _without_bars():
            for file, addition in zip(files, additions, strict=True):
                if progress is not None:
                    progress(done, total, file.name)
                self._api.preupload_lfs_files(
                    self.repository, [addition], revision=self.revision, free_memory=False, gitignore_content=""
                )
                done += file.nbytes
            if progress is not None:
                progress(total, total, "commit")
            commit = self._api.create_commit(self.repository, additions, commit_message=message, revision=self.revision)
        return str(commit.commit_url)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of the hub into one line."""
        try:
            yield
        except (UsageError, FileError):
            raise
        except Exception as error:  # the hub raises its own errors, HTTP client errors, ValueError and OSError
            raise FileError(f"{self.repository}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    status = _status(error)
    if status == 401:
        return "the hub does not know this token; check HF_TOKEN, or log in with 'hf auth login'"
    if status == 403:
        return "the token may not write to this repository; expected a token with write access"
    if status == 404:
        return "the hub has no such repository, or the token may not see it"
    text = without_secrets(
        next((line for line in str(list(_causes(error))[-1]).splitlines() if line), type(error).__name__)
    )
    if status is None and any(isinstance(each, OSError) for each in _causes(error)):
        return f"the hub cannot be reached: {text}; run the command again to resume"
    return f"the upload failed: {text}; run the command again to resume"


def _status(error: BaseException) -> int | None:
    """The HTTP status of an error, or of one that caused it."""
    for each in _causes(error):
        response: Any = getattr(each, "response", None)
        if response is not None and isinstance(getattr(response, "status_code", None), int):
            return int(response.status_code)
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def _without_bars() -> Iterator[None]:
    utils: Any = import_module("huggingface_hub.utils")
    was_disabled = utils.are_progress_bars_disabled()
    utils.disable_progress_bars()
    try:
        yield
    finally:
        if not was_disabled:
            utils.enable_progress_bars()
