"""Look up a model on the Hugging Face hub and in the cache: access, size, what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dflash_tui.engines.hub import cache, client
from dflash_tui.engines.hub.cache import HubFile
from dflash_tui.engines.hub.client import Access, HubAccessError
from dflash_tui.planning import kv_cache
from dflash_tui.planning.memory import LocalModel
from dflash_tui.planning.recipes.recipe import ModelConfig

if TYPE_CHECKING:
    from huggingface_hub.hf_api import DatasetInfo, ModelInfo

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
    """The branch, tag or commit."""
    access: Access
    """Whether the user may download it."""
    detail: str = ""
    """The evidence for `access`, free of any token."""
    commit: str | None = None
    """The commit that the revision is."""
    gated: bool | None = None
    """Whether its terms have to be accepted."""
    total_bytes: int | None = None
    """The bytes of the files that vLLM loads."""
    cached_bytes: int = 0
    """How many of them are in the cache."""
    missing_bytes: int | None = None
    """How many of them are not."""
    complete: bool = False
    """Whether all files that vLLM loads are in the cache."""
    folder: str | None = None
    """The folder of a complete model."""
    files: tuple[HubFile, ...] = ()
    """The files that vLLM loads; empty when the hub was not asked or did not say."""


async def look_up_model(repo: str, revision: str = "main") -> ModelAvailability:
    """Look up `repo` on the hub and in the cache, within ten seconds; a folder is taken as it is.

    When the hub may not be asked or refuses access, a snapshot that is whole by its own index counts as complete.
    """
    if local := _find_folder(repo, revision):
        return local
    if not is_repository(repo):
        return ModelAvailability(repo, revision, Access.NOT_FOUND, "neither a folder nor owner/name")
    try:
        info = await client.fetch_repository(repo, revision)
    except HubAccessError as error:
        return _look_into_cache(repo, revision, error)
    files = cache.select_loaded_files(list_files(info))
    model = describe_files(repo, revision, info, files)
    if not cache.select_weight_files(file.name for file in files):
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
        yield HubFile(file.rfilename, file.size, lfs.sha256 if lfs else file.blob_id or "", large=lfs is not None)


def describe_files(
    repo: str, revision: str, info: ModelInfo | DatasetInfo, files: tuple[HubFile, ...]
) -> ModelAvailability:
    """Return what of these files of a repository is in the cache."""
    commit, gated = info.sha or "", bool(info.gated)
    sizes = [file.size for file in files if file.size is not None]
    known = len(sizes) == len(files)
    cached = cache.measure_cached_bytes(repo, commit, files)
    complete = known and cache.has_all_files(repo, commit, files)
    return ModelAvailability(
        repo,
        revision,
        Access.GRANTED if gated or info.private else Access.OPEN,
        "" if known else "the hub does not say how large its files are",
        commit=commit,
        gated=gated,
        total_bytes=sum(sizes) if known else None,
        cached_bytes=cached,
        missing_bytes=sum(sizes) - cached if known else None,
        complete=complete,
        folder=str(cache.snapshot_folder(repo, commit)) if complete else None,
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
    local = cache.find_local_folder(repo)
    if local is None:
        return None
    model = _complete(
        ModelAvailability(repo, revision, Access.OPEN, "a folder"), local, cache.measure_local_size(local)
    )
    # Random weights need no files of their own, and are as large as those of the model that is not here.
    weights = cache.select_weight_files(cache.list_loaded_files(local))
    return model if weights else msgspec.structs.replace(model, total_bytes=None)


def _look_into_cache(repo: str, revision: str, error: HubAccessError) -> ModelAvailability:
    commit = cache.read_cached_commit(repo, revision)
    model = ModelAvailability(repo, revision, error.access, error.detail, commit=commit, gated=error.gated)
    if commit is None or not (at := cache.snapshot_folder(repo, commit)).is_dir():
        return model
    size = cache.measure_local_size(at)
    if not cache.is_whole_snapshot(at):
        return msgspec.structs.replace(model, cached_bytes=size)
    return _complete(model, at, size)


def _complete(model: ModelAvailability, at: Path, size: int) -> ModelAvailability:
    return msgspec.structs.replace(
        model, complete=True, folder=str(at), total_bytes=size, cached_bytes=size, missing_bytes=0
    )


def advise_access(model: ModelAvailability) -> str:
    """Return what the user can do about the model's `access`, empty when there is nothing to do."""
    page = f"{cache.hub_endpoint()}/{model.repo}"
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
