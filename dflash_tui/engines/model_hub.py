"""Models on the Hugging Face hub and in its cache: access, size, what is missing.

The cache is read without huggingface_hub, whose import (0.4 s) takes longer than a plan; it is imported with the first
question to the hub. `models--owner--name/` holds `refs/<revision>` (a commit), `snapshots/<commit>/<file>` (links) and
`blobs/<etag>`; a blob that is being fetched ends in `.incomplete`.
"""

from __future__ import annotations

import asyncio
import fnmatch
import hashlib
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dflash_tui.common import paths
from dflash_tui.common.daemon_thread import start_daemon
from dflash_tui.common.sanitizer import join_clean_lines
from dflash_tui.planning import kv_cache
from dflash_tui.planning.memory import LocalModel
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import ModelConfig

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import DatasetInfo, ModelInfo


_TRUE = {"1", "ON", "YES", "TRUE"}
_COMMIT = re.compile(r"[0-9a-f]{40}")
DATASETS = "datasets/"
_BESIDE = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py")
_TEMPLATES = "additional_chat_templates/"
_INDEX = "model.safetensors.index.json"


class HubFile(msgspec.Struct, frozen=True):
    """A file of a repository on the hub."""

    name: str
    size: int = 0
    """Its bytes."""
    etag: str = ""
    """The name of its blob in the cache."""
    large: bool = False
    """Whether it is stored as a large file (LFS), whose ETag is its SHA-256."""


def hub_endpoint() -> str:
    """Return the hub's address without a slash at its end (HF_ENDPOINT)."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def hub_cache_folder() -> Path:
    """Return the cache's folder, absolute (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME)."""
    variable = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return paths.expand_variables(variable) if variable else paths.hub_home_folder() / "hub"


def is_hub_offline() -> bool:
    """Whether the user forbids requests to the hub (HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE)."""
    return (os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or "").upper() in _TRUE


def select_loaded_files(files: Iterable[HubFile]) -> tuple[HubFile, ...]:
    """Return those of `files` that vLLM loads, large ones first; the download fetches exactly these.

    * the weights: every *.safetensors of the root, or every *.bin (but training_args.bin) when there is none
    * beside them *.json, *.jinja, *.txt, *.model, *.tiktoken and *.py: configuration, tokenizer, code
    * the templates in additional_chat_templates/

    Other folders (original/, metal/, onnx/) and formats hold the same weights again.
    """
    root = [file for file in files if "/" not in file.name.removeprefix(_TEMPLATES)]
    weights = select_weight_files(file.name for file in root)
    chosen = [f for f in root if f.name in weights or any(fnmatch.fnmatchcase(f.name, p) for p in _BESIDE)]
    return tuple(sorted(chosen, key=lambda file: (not file.large, file.name)))


def select_weight_files(names: Iterable[str]) -> set[str]:
    """Return those of the files of one folder that are weights."""
    weights = {name for name in names if name.endswith((".safetensors", ".bin")) and name != "training_args.bin"}
    return {name for name in weights if name.endswith(".safetensors")} or weights


def list_loaded_files(folder: Path) -> dict[str, Path]:
    """Return the files of a model's folder that vLLM loads, by their names in it."""
    files = {str(path.relative_to(folder)): path for path in (*folder.glob("*"), *folder.glob("*/*")) if path.is_file()}
    return {file.name: files[file.name] for file in select_loaded_files(map(HubFile, sorted(files)))}


def repository_folder(repo: str) -> Path:
    """Return the folder of the repository in the cache, whether it exists or not.

    As in the hub's addresses, that of a data set begins with `datasets/`, that of a model with its owner.
    """
    return hub_cache_folder() / (repo if repo.startswith(DATASETS) else f"models/{repo}").replace("/", "--")


def read_cached_commit(repo: str, revision: str) -> str | None:
    """Return the commit that the cache last saw as `revision`, or None."""
    if _COMMIT.fullmatch(revision):
        return revision
    try:
        return (repository_folder(repo) / "refs" / revision).read_text().strip() or None
    except (OSError, ValueError):
        return None


def snapshot_folder(repo: str, commit: str) -> Path:
    """Return the folder that vLLM loads, whether it exists or not."""
    return repository_folder(repo) / "snapshots" / commit


def has_all_files(repo: str, commit: str, files: Iterable[HubFile]) -> bool:
    """Whether the snapshot holds every one of `files` in full."""
    at = snapshot_folder(repo, commit)
    return all(measure_file(at / file.name) == file.size for file in files)


def is_whole_snapshot(at: Path) -> bool:
    """Whether the snapshot holds all weights by its own index, or its only file of weights, and a config.json."""
    try:
        names = {path.name for path in at.iterdir() if path.is_file()}
        index = msgspec.json.decode((at / _INDEX).read_bytes()) if _INDEX in names else None
        needed = set(index["weight_map"].values()) if index else set()
    except (OSError, msgspec.MsgspecError, KeyError, TypeError):
        return False
    weights = select_weight_files(names)
    # Without their index, numbered shards do not tell whether they are all there.
    complete = needed <= names if needed else not any("-of-" in name for name in weights)
    return complete and bool(weights) and "config.json" in names


def has_broken_index(at: Path) -> bool:
    """Whether a model's folder has an index of weights that cannot be read, or that names files which are not there."""
    return (at / _INDEX).is_file() and not is_whole_snapshot(at)


def measure_cached_bytes(repo: str, commit: str, files: Iterable[HubFile]) -> int:
    """Return how many bytes of `files` are in the cache, including those of a download of ours that can be resumed."""
    at, blobs = snapshot_folder(repo, commit), repository_folder(repo) / "blobs"
    total = 0
    for file in files:
        places = (at / file.name, *((blobs / file.etag, blobs / f"{file.etag}.incomplete") if file.etag else ()))
        total += next((size for place in places if (size := measure_file(place)) is not None), 0)
    return total


def find_local_folder(text: str) -> Path | None:
    """Return the folder with the path `text`, absolute, or None when there is none."""
    try:
        path = Path(text).expanduser().absolute()
        return path if text and path.is_dir() else None
    except (OSError, RuntimeError, ValueError):
        return None


def measure_local_size(at: Path) -> int:
    """Return the bytes of the files in the root of a folder; 0 when it cannot be read."""
    try:
        return sum(measure_file(path) or 0 for path in at.iterdir())
    except OSError:
        return 0


def measure_file(path: Path) -> int | None:
    """Return the bytes of a file; None where there is none."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


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
    name = repo.removeprefix(DATASETS)
    return ("model" if name == repo else "dataset"), name


def open_hub() -> HfApi:
    """Return the hub's client, which neither writes into the terminal nor tells the hub about this machine."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import disable_progress_bars, logging

    constants.HF_HUB_DISABLE_TELEMETRY = True
    logging.set_verbosity_error()
    disable_progress_bars()
    return HfApi(endpoint=hub_endpoint())


async def ask_hub(question: Callable[[HfApi], T]) -> T:
    """Return what `question` gets from the hub's client; it is called in a thread of its own.

    Raises:
        HubAccessError: the hub refuses access, may not be asked, or did not answer within ten seconds.
    """
    if is_hub_offline():
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
    """Return a small file of a model's repository, which is not kept; errors are those of `ask_hub`."""

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


_REPO = re.compile(r"[\w-][\w.-]{0,95}(/[\w-][\w.-]{0,95})?", re.ASCII)
_GIVE_TOKEN = "`export HF_TOKEN=…` or `hf auth login`"  # noqa: S105
_ADVICE = {
    Access.NEEDS_TOKEN: "accept the terms at {page}, create a token in that account's settings, and set it: {token}",
    Access.TOKEN_REFUSED: "the hub refuses the token that is set; set a valid one with read access: {token}",
    Access.TERMS_NOT_ACCEPTED: "open {page} with the account of the token and accept the terms; a fine-grained token "
    "also needs access to public gated repositories",
    Access.NOT_FOUND: "check the spelling of {repo}; a private model needs a token with read access: {token}",
    Access.REVISION_NOT_FOUND: "choose a branch, tag or commit listed at {page}",
    Access.UNREACHABLE: "check the network, the proxy and HF_ENDPOINT, and try again",
    Access.OFFLINE: "unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE to ask the hub",
}


class ModelAvailability(msgspec.Struct, frozen=True):
    """What is known of a model on the hub and in the cache; what could not be learned is None."""

    repo: str
    """The repository, or a folder."""
    revision: str
    access: Access
    detail: str = ""
    """The evidence for `access`, free of any token."""
    commit: str | None = None
    gated: bool | None = None
    total_bytes: int | None = None
    """The bytes of the files that vLLM loads."""
    cached_bytes: int = 0
    missing_bytes: int | None = None
    complete: bool = False
    """Whether all of these files are in the cache."""
    folder: str | None = None
    files: tuple[HubFile, ...] = ()
    """These files; empty when the hub was not asked."""


async def look_up_model(repo: str, revision: str = "main") -> ModelAvailability:
    """Look up `repo` on the hub and in the cache, within ten seconds; a folder is taken as it is.

    When the hub may not be asked or refuses access, a snapshot that is whole by its own index counts as complete.
    """
    if local := _find_folder(repo, revision):
        return local
    if not is_repository(repo):
        return ModelAvailability(repo, revision, Access.NOT_FOUND, "neither a folder nor owner/name")
    try:
        info = await fetch_repository(repo, revision)
    except HubAccessError as error:
        return _look_into_cache(repo, revision, error)
    files = select_loaded_files(list_files(info))
    model = describe_files(repo, revision, info, files)
    if not select_weight_files(file.name for file in files):
        return msgspec.structs.replace(
            model, detail="no *.safetensors and no *.bin in it", total_bytes=None, missing_bytes=None, complete=False
        )
    return model


def is_repository(name: str) -> bool:
    """Whether the hub may have a model of that name."""
    return bool(_REPO.fullmatch(name)) and ".." not in name and "--" not in name


def list_files(info: ModelInfo | DatasetInfo) -> Iterable[HubFile]:
    """Return the files of a repository."""
    for file in info.siblings or ():
        lfs = file.lfs
        yield HubFile(file.rfilename, file.size or 0, lfs.sha256 if lfs else file.blob_id or "", large=lfs is not None)


def describe_files(
    repo: str, revision: str, info: ModelInfo | DatasetInfo, files: tuple[HubFile, ...]
) -> ModelAvailability:
    """Return what of these files of a repository is in the cache."""
    commit, gated = info.sha or "", bool(info.gated)
    total, cached = sum(file.size for file in files), measure_cached_bytes(repo, commit, files)
    complete = has_all_files(repo, commit, files)
    return ModelAvailability(
        repo,
        revision,
        Access.GRANTED if gated or info.private else Access.OPEN,
        commit=commit,
        gated=gated,
        total_bytes=total,
        cached_bytes=cached,
        missing_bytes=total - cached,
        complete=complete,
        folder=str(snapshot_folder(repo, commit)) if complete else None,
        files=files,
    )


def find_local_model(repo: str, revision: str = "main") -> ModelAvailability | None:
    """Return the model when it is a folder or complete in the cache; None otherwise. The hub is not asked."""
    if folder := _find_folder(repo, revision):
        return folder
    if not is_repository(repo):
        return None
    cached = _look_into_cache(repo, revision, HubAccessError(Access.OFFLINE, "not asked"))
    return cached if cached.complete else None


def _find_folder(repo: str, revision: str) -> ModelAvailability | None:
    local = find_local_folder(repo)
    if local is None:
        return None
    model = _complete(ModelAvailability(repo, revision, Access.OPEN, "a folder"), local, measure_local_size(local))
    # Random weights need no files of their own, and are as large as those of the model that is not here.
    weights = select_weight_files(list_loaded_files(local))
    return model if weights else msgspec.structs.replace(model, total_bytes=None)


def _look_into_cache(repo: str, revision: str, error: HubAccessError) -> ModelAvailability:
    commit = read_cached_commit(repo, revision)
    model = ModelAvailability(repo, revision, error.access, error.detail, commit=commit, gated=error.gated)
    if commit is None or not (at := snapshot_folder(repo, commit)).is_dir():
        return model
    size = measure_local_size(at)
    if not is_whole_snapshot(at):
        return msgspec.structs.replace(model, cached_bytes=size)
    return _complete(model, at, size)


def _complete(model: ModelAvailability, at: Path, size: int) -> ModelAvailability:
    return msgspec.structs.replace(
        model, complete=True, folder=str(at), total_bytes=size, cached_bytes=size, missing_bytes=0
    )


def advise_access(model: ModelAvailability) -> str:
    """Return what the user can do about the model's `access`, empty when there is nothing to do."""
    page = f"{hub_endpoint()}/{model.repo}"
    return _ADVICE.get(model.access, "").format(page=page, repo=model.repo, token=_GIVE_TOKEN)


def read_local_model(model: ModelAvailability) -> LocalModel:
    """Return the shape of a model by its config.json, where it is on this machine, and the size of its files."""
    config = read_local_config(Path(model.folder)) if model.folder else None
    shape: ModelConfig | None = kv_cache.read_model_shape(config) if config is not None else None
    return LocalModel(shape, model.total_bytes)


def read_local_config(folder: Path) -> dict[str, Any] | None:
    """Return the config.json of a model's folder; None where there is none that can be read."""
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return config if isinstance(config, dict) else None


# Larger files are told apart by their names and sizes: to read 60 GB takes minutes.
_MOST_HASHED = 256 << 20


def describe_models(plan: Plan) -> dict[str, str]:
    """Return by `target` and `drafter` which weights each has; what is not here yet is left out."""
    names = {"target": plan.target, "drafter": plan.drafter}
    weights = {word: describe_model(plan, name) for word, name in names.items() if name}
    return {word: text for word, text in weights.items() if text}


def describe_model(plan: Plan, name: str) -> str:
    """Return the commit of a repository, or a digest of a folder's files; empty when it is not here yet."""
    revision = next((model.revision for model in plan.models if model.name == name), "main")
    model = find_local_model(name, revision)
    if model is None or model.folder is None:
        return ""
    folder = Path(model.folder)
    return f"commit {folder.name}" if folder.parent.name == "snapshots" else _digest_folder(folder)


def _digest_folder(folder: Path) -> str:
    files = sorted(list_loaded_files(folder).values())
    small = sum(path.stat().st_size for path in files) <= _MOST_HASHED
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder)} {size}\n".encode())
        if small or size < 1 << 20:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
