"""Models on the Hugging Face hub and in its cache: access, size, missing files.

The cache is read without huggingface_hub, whose import (0.4 s) takes longer than a plan; it is imported on the first
request to the hub. `models--owner--name/` holds `refs/<revision>` (a commit), `snapshots/<commit>/<file>` (links) and
`blobs/<etag>`; the name of an unfinished blob ends in `.incomplete`.
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
from dflash_tui.planning.step_limit import StepModel, Tensor, sort_weights

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
    """Its size in bytes."""
    etag: str = ""
    """The name of its blob in the cache."""
    large: bool = False
    """Whether it is stored with Git LFS; its ETag is then its SHA-256."""


def hub_endpoint() -> str:
    """Return the hub's address without a trailing slash (HF_ENDPOINT)."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def hub_cache_folder() -> Path:
    """Return the absolute path of the hub's cache (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME)."""
    variable = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return paths.expand_variables(variable) if variable else paths.hub_home_folder() / "hub"


def is_hub_offline() -> bool:
    """Whether the user forbids requests to the hub (HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE)."""
    return (os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or "").upper() in _TRUE


def select_loaded_files(files: Iterable[HubFile]) -> tuple[HubFile, ...]:
    """Return those of `files` that vLLM loads, large ones first; only these are downloaded.

    * the weights: every *.safetensors in the root or, if there is none, every *.bin except training_args.bin
    * *.json, *.jinja, *.txt, *.model, *.tiktoken and *.py in the root: configuration, tokenizer, code
    * the templates in additional_chat_templates/

    Other folders (original/, metal/, onnx/) and formats repeat the same weights.
    """
    root = [file for file in files if "/" not in file.name.removeprefix(_TEMPLATES)]
    weights = select_weight_files(file.name for file in root)
    chosen = [f for f in root if f.name in weights or any(fnmatch.fnmatchcase(f.name, p) for p in _BESIDE)]
    return tuple(sorted(chosen, key=lambda file: (not file.large, file.name)))


def select_weight_files(names: Iterable[str]) -> set[str]:
    """Return the weight files among the file names of one folder."""
    weights = {name for name in names if name.endswith((".safetensors", ".bin")) and name != "training_args.bin"}
    return {name for name in weights if name.endswith(".safetensors")} or weights


def list_loaded_files(folder: Path) -> dict[str, Path]:
    """Return the files in a model's folder that vLLM loads, by relative path."""
    files = {str(path.relative_to(folder)): path for path in (*folder.glob("*"), *folder.glob("*/*")) if path.is_file()}
    return {file.name: files[file.name] for file in select_loaded_files(map(HubFile, sorted(files)))}


def repository_folder(repo: str) -> Path:
    """Return the repository's folder in the cache, whether it exists or not.

    As in the hub's addresses, `repo` starts with `datasets/` for a data set, and with the owner for a model.
    """
    return hub_cache_folder() / (repo if repo.startswith(DATASETS) else f"models/{repo}").replace("/", "--")


def read_cached_commit(repo: str, revision: str) -> str | None:
    """Return the commit that the cache has for `revision`, or None."""
    if _COMMIT.fullmatch(revision):
        return revision
    try:
        return (repository_folder(repo) / "refs" / revision).read_text().strip() or None
    except (OSError, ValueError):
        return None


def snapshot_folder(repo: str, commit: str) -> Path:
    """Return the snapshot folder that vLLM loads, whether it exists or not."""
    return repository_folder(repo) / "snapshots" / commit


def has_all_files(repo: str, commit: str, files: Iterable[HubFile]) -> bool:
    """Whether the snapshot holds all `files` at their full size."""
    at = snapshot_folder(repo, commit)
    return all(measure_file(at / file.name) == file.size for file in files)


def is_whole_snapshot(at: Path) -> bool:
    """Whether the snapshot has a config.json and all weights of its index, or without one unnumbered weights."""
    try:
        names = {path.name for path in at.iterdir() if path.is_file()}
        index = msgspec.json.decode((at / _INDEX).read_bytes()) if _INDEX in names else None
        needed = set(index["weight_map"].values()) if index else set()
    except (OSError, msgspec.MsgspecError, KeyError, TypeError):
        return False
    weights = select_weight_files(names)
    # Without an index, numbered shards count as incomplete.
    complete = needed <= names if needed else not any("-of-" in name for name in weights)
    return complete and bool(weights) and "config.json" in names


def has_broken_index(at: Path) -> bool:
    """Whether a model's folder has a weight index that cannot be read or names missing files."""
    return (at / _INDEX).is_file() and not is_whole_snapshot(at)


def measure_cached_bytes(repo: str, commit: str, files: Iterable[HubFile]) -> int:
    """Return how many bytes of `files` are in the cache, including our own partial downloads."""
    at, blobs = snapshot_folder(repo, commit), repository_folder(repo) / "blobs"
    total = 0
    for file in files:
        places = (at / file.name, *((blobs / file.etag, blobs / f"{file.etag}.incomplete") if file.etag else ()))
        total += next((size for place in places if (size := measure_file(place)) is not None), 0)
    return total


def find_local_folder(text: str) -> Path | None:
    """Return the absolute path of the folder `text`, or None if there is none."""
    try:
        path = Path(text).expanduser().absolute()
        return path if text and path.is_dir() else None
    except (OSError, RuntimeError, ValueError):
        return None


def measure_local_size(at: Path) -> int:
    """Return the size in bytes of the files in a folder's root; 0 if it cannot be read."""
    try:
        return sum(measure_file(path) or 0 for path in at.iterdir())
    except OSError:
        return 0


def measure_file(path: Path) -> int | None:
    """Return the size of a file in bytes; None if there is none."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


T = TypeVar("T")

TIMEOUT = 10.0
"""Seconds to wait for an answer from the hub."""
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
        """Whether the model's files can be downloaded."""
        return self in {Access.OPEN, Access.GRANTED}


class HubAccessError(Exception):
    """The hub cannot be accessed: the reason, the evidence, and whether the model is gated (None if unknown)."""

    def __init__(self, access: Access, detail: str, gated: bool | None = None) -> None:
        super().__init__(detail)
        self.access, self.detail, self.gated = access, detail, gated


def split_repository(repo: str) -> tuple[str, str]:
    """Return the type (`model` or `dataset`) and the name of a repository."""
    name = repo.removeprefix(DATASETS)
    return ("model" if name == repo else "dataset"), name


def open_hub() -> HfApi:
    """Return a client of the hub without telemetry, progress bars and warnings."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import disable_progress_bars, logging

    constants.HF_HUB_DISABLE_TELEMETRY = True
    logging.set_verbosity_error()
    disable_progress_bars()
    return HfApi(endpoint=hub_endpoint())


async def ask_hub(question: Callable[[HfApi], T]) -> T:
    """Call `question` with the hub's client in a thread, and return its result.

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
    except Exception as error:  # noqa: BLE001 - from its HTTP library, from JSON or from huggingface_hub itself
        raise explain_error(error) from None


async def fetch_repository(repo: str, revision: str) -> ModelInfo | DatasetInfo:
    """Return the hub's description of a repository with its files, if this user may read the files.

    The description of a gated model is public, so a file is requested first.

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
    """Return the content of a small file in a model's repository without caching it; raises as `ask_hub`."""

    def ask(hub: HfApi) -> bytes:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        address = hf_hub_url(repo, name, revision=revision, endpoint=hub.endpoint)
        answer = get_session().get(address, headers=build_hf_headers(), timeout=TIMEOUT)
        hf_raise_for_status(answer)
        return answer.content

    return await ask_hub(ask)


def explain_error(error: BaseException) -> HubAccessError:
    """Convert an error of huggingface_hub to a HubAccessError that quotes the hub's message."""
    from huggingface_hub import errors

    if isinstance(error, HubAccessError):
        return error
    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__:  # a file could not be fetched
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
        # Without access, the hub does not say whether a model is private or does not exist.
        return Access.NOT_FOUND
    if status in {401, 403} and with_token:
        return Access.TOKEN_REFUSED
    return Access.NOT_FOUND if status in {401, 404} else Access.UNREACHABLE


def quote_hub_text(text: str) -> str:
    """Return the first 300 characters of a text from the hub as one line."""
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
    """A model on the hub and in the cache; unknown values are None."""

    repo: str
    """The repository, or the path of a folder."""
    revision: str
    access: Access
    detail: str = ""
    """The evidence for `access`, without any token."""
    commit: str | None = None
    gated: bool | None = None
    total_bytes: int | None = None
    """The size of the files that vLLM loads."""
    cached_bytes: int = 0
    missing_bytes: int | None = None
    complete: bool = False
    """Whether all files that vLLM loads are in the cache."""
    folder: str | None = None
    files: tuple[HubFile, ...] = ()
    """The files that vLLM loads; empty if the hub was not asked."""


async def look_up_model(repo: str, revision: str = "main") -> ModelAvailability:
    """Look up `repo` on the hub and in the cache, within ten seconds; a folder is used as it is.

    If the hub may not be asked or refuses access, a cached snapshot counts as complete if `is_whole_snapshot`.
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
    """Whether `name` is a valid repository name."""
    return bool(_REPO.fullmatch(name)) and ".." not in name and "--" not in name


def list_files(info: ModelInfo | DatasetInfo) -> Iterable[HubFile]:
    """Yield the files of a repository."""
    for file in info.siblings or ():
        lfs = file.lfs
        yield HubFile(file.rfilename, file.size or 0, lfs.sha256 if lfs else file.blob_id or "", large=lfs is not None)


def describe_files(
    repo: str, revision: str, info: ModelInfo | DatasetInfo, files: tuple[HubFile, ...]
) -> ModelAvailability:
    """Return how much of these files of a repository is in the cache."""
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
    """Return the model if it is a folder or complete in the cache, else None; the hub is not asked."""
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
    # Without weight files the server uses random weights; their size is that of the model, which is not here.
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
    """Return what the user can do about the model's `access`; empty if there is nothing to do."""
    page = f"{hub_endpoint()}/{model.repo}"
    return _ADVICE.get(model.access, "").format(page=page, repo=model.repo, token=_GIVE_TOKEN)


def read_local_model(model: ModelAvailability) -> LocalModel:
    """Return the shape of a local model by its config.json (None without one), and the size of its files."""
    config = read_local_config(Path(model.folder)) if model.folder else None
    shape: ModelConfig | None = kv_cache.read_model_shape(config) if config is not None else None
    return LocalModel(shape, model.total_bytes)


def read_local_config(folder: Path) -> dict[str, Any] | None:
    """Return the config.json in a model's folder; None if it cannot be read."""
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return config if isinstance(config, dict) else None


def read_step_model(plan: Plan, name: str) -> StepModel:
    """Return a model of a plan as its config.json and the headers of its safetensors files on this machine have it."""
    folder = _find_model_folder(plan, name)
    config = read_local_config(folder) if folder else None
    if folder is None or config is None:
        return StepModel(name)
    files = list_loaded_files(folder)
    weights = [files[file] for file in select_weight_files(files)]
    try:
        tensors = [tensor for path in weights for tensor in _read_tensors(path)]
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        tensors = []
    shape: ModelConfig | None = kv_cache.read_model_shape(config)
    return StepModel(name, shape, sort_weights(tensors, config) if tensors else None)


class _TensorHeader(msgspec.Struct):
    dtype: str = ""
    data_offsets: tuple[int, int] = (0, 0)


_HEADER = msgspec.json.Decoder(dict[str, _TensorHeader])
# The format's own limit.
_LONGEST_HEADER = 100_000_000


def _read_tensors(path: Path) -> list[Tensor]:
    """Return the tensors of a safetensors file: a length of eight bytes, and as much JSON."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if path.suffix != ".safetensors" or length > _LONGEST_HEADER:
            raise ValueError(f"{path} is not a safetensors file")
        tensors = _HEADER.decode(file.read(length))
    return [
        Tensor(name, told.dtype, told.data_offsets[1] - told.data_offsets[0])
        for name, told in tensors.items()
        if told.dtype  # else it is the file's metadata
    ]


# Above this total, large files are identified by name and size only: reading 60 GB takes minutes.
_MOST_HASHED = 256 << 20


def describe_models(plan: Plan) -> dict[str, str]:
    """Return the commit or digest of the `target` and the `drafter`, without models that are not on this machine."""
    names = {"target": plan.target, "drafter": plan.drafter}
    weights = {word: describe_model(plan, name) for word, name in names.items() if name}
    return {word: text for word, text in weights.items() if text}


def _find_model_folder(plan: Plan, name: str) -> Path | None:
    revision = next((model.revision for model in plan.models if model.name == name), "main")
    model = find_local_model(name, revision)
    return Path(model.folder) if model and model.folder else None


def describe_model(plan: Plan, name: str) -> str:
    """Return the commit of a repository or a digest of a folder's files; empty if it is not on this machine."""
    folder = _find_model_folder(plan, name)
    if folder is None:
        return ""
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
