"""Ask the hub by huggingface_hub, which is imported with the first question (0.4 s), and say why there is no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from dflash_tui.common.daemon_thread import start_daemon
from dflash_tui.common.sanitizer import join_clean_lines
from dflash_tui.engines.hub import cache

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import DatasetInfo, ModelInfo

T = TypeVar("T")

TIMEOUT = 10.0
"""Seconds that an answer of the hub may take."""
_TEXT_LIMIT = 300


class Access(StrEnum):
    """Whether this user may download a model from the hub."""

    OPEN = "open"
    GRANTED = "granted"
    NEEDS_TOKEN = "needs token"  # noqa: S105 - words for the user
    TOKEN_REFUSED = "token refused"  # noqa: S105
    TERMS_NOT_ACCEPTED = "terms not accepted"
    NOT_FOUND = "not found"
    REVISION_NOT_FOUND = "revision not found"
    UNREACHABLE = "unreachable"
    OFFLINE = "offline"

    @property
    def ok(self) -> bool:
        """Whether its files can be fetched."""
        return self in {Access.OPEN, Access.GRANTED}


class HubAccessError(Exception):
    """The hub does not give access: why, the evidence, and whether the model is known to be gated."""

    def __init__(self, access: Access, detail: str, gated: bool | None = None) -> None:
        super().__init__(detail)
        self.access, self.detail, self.gated = access, detail, gated


def split_repository(repo: str) -> tuple[str, str]:
    """Return the type of a repository and its name: that of a data set begins with `datasets/`, as its address does."""
    name = repo.removeprefix(cache.DATASETS)
    return ("model" if name == repo else "dataset"), name


def open_hub() -> HfApi:
    """Return the hub's client, which neither writes into the terminal nor tells the hub about this machine."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import disable_progress_bars, logging

    constants.HF_HUB_DISABLE_TELEMETRY = True
    logging.set_verbosity_error()
    disable_progress_bars()
    return HfApi(endpoint=cache.hub_endpoint())


async def ask_hub(question: Callable[[HfApi], T]) -> T:
    """Return what `question` gets from the hub's client; it is called in a thread of its own.

    Raises:
        HubAccessError: the hub refuses access, may not be asked, or did not answer within ten seconds.
    """
    if cache.is_hub_offline():
        raise HubAccessError(Access.OFFLINE, "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set")
    try:
        async with asyncio.timeout(TIMEOUT):
            return await asyncio.wrap_future(start_daemon(lambda: question(open_hub())))
    except TimeoutError:
        raise HubAccessError(Access.UNREACHABLE, f"no answer within {TIMEOUT:.0f} s") from None
    except Exception as error:  # noqa: BLE001 - of its HTTP library, of JSON, of what it makes of that
        raise explain_error(error) from None


async def fetch_repository(repo: str, revision: str) -> ModelInfo | DatasetInfo:
    """Return the hub's description of a repository with its files, once one of them may be read.

    The description of a gated model is public, its files are not.

    Raises:
        HubAccessError: as `ask_hub`.
    """
    kind, name = split_repository(repo)

    def ask(hub: HfApi) -> ModelInfo | DatasetInfo:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError

        address = hf_hub_url(name, "config.json", repo_type=kind, revision=revision, endpoint=hub.endpoint)
        with suppress(EntryNotFoundError):
            hub.get_hf_file_metadata(url=address, timeout=TIMEOUT)
        about = hub.model_info if kind == "model" else hub.dataset_info
        return about(name, revision=revision, files_metadata=True, timeout=TIMEOUT)

    return await ask_hub(ask)


async def fetch_small_file(repo: str, revision: str, name: str) -> bytes:
    """Return a file of a model's repository, such as its config.json; it is not kept.

    Raises:
        HubAccessError: as `ask_hub`.
    """

    def ask(hub: HfApi) -> bytes:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        address = hf_hub_url(repo, name, revision=revision, endpoint=hub.endpoint)
        answer = get_session().get(address, headers=build_hf_headers(), timeout=TIMEOUT)
        hf_raise_for_status(answer)
        return answer.content

    return await ask_hub(ask)


def explain_error(error: BaseException) -> HubAccessError:
    """Return what an error of huggingface_hub says about the access of this user, with the hub's own words."""
    from huggingface_hub import errors

    if isinstance(error, HubAccessError):
        return error
    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__:  # a file that could not be fetched
        error = error.__cause__
    if isinstance(error, errors.HFValidationError):
        return HubAccessError(Access.NOT_FOUND, "neither a folder nor owner/name")
    if not isinstance(error, errors.HfHubHTTPError):
        return HubAccessError(Access.UNREACHABLE, quote_hub_text(f"{type(error).__name__}: {error}"))
    answer = error.response
    code, message = (answer.headers.get(f"X-Error-{what}", "") for what in ("Code", "Message"))
    access = _read_access(error, answer.status_code, with_token="Authorization" in answer.request.headers)
    words = f"HTTP {answer.status_code}{f' {code}' if code else ''}{f': {message}' if message else ''}"
    gated = True if access in {Access.NEEDS_TOKEN, Access.TERMS_NOT_ACCEPTED} else None
    return HubAccessError(access, quote_hub_text(words), gated)


def _read_access(error: HfHubHTTPError, status: int, *, with_token: bool) -> Access:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        refused = Access.TOKEN_REFUSED if status == 401 else Access.TERMS_NOT_ACCEPTED
        return refused if with_token else Access.NEEDS_TOKEN
    if isinstance(error, errors.RevisionNotFoundError):
        return Access.REVISION_NOT_FOUND
    if isinstance(error, errors.RepositoryNotFoundError | errors.DisabledRepoError):
        # The hub does not tell a stranger whether a model is private or does not exist.
        return Access.NOT_FOUND
    if status in {401, 403} and with_token:
        return Access.TOKEN_REFUSED
    return Access.NOT_FOUND if status in {401, 404} else Access.UNREACHABLE


def quote_hub_text(text: str) -> str:
    """Return the start of a text of the hub as one line."""
    return join_clean_lines(text)[:_TEXT_LIMIT]
