"""Models on the Hugging Face hub: may they be fetched, what of them is in the cache, what is missing."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from dflash_tui.engines.hub import cache, client
from dflash_tui.engines.hub.cache import HubFile
from dflash_tui.engines.hub.client import Access, HubAccessError, RepositoryFile, RepositoryInfo
from dflash_tui.planning import kv_cache
from dflash_tui.planning.memory import LocalModel
from dflash_tui.planning.recipe import ModelConfig

_REPO = re.compile(r"[\w-][\w.-]{0,95}(/[\w-][\w.-]{0,95})?", re.ASCII)
_ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_GIVE_TOKEN = "`export HF_TOKEN=…` or `hf auth login`"  # noqa: S105
_ADVICE = {
    Access.NEEDS_TOKEN: "accept the terms at {page}, make a token in that account's settings, and give it: {token}",
    Access.TOKEN_REFUSED: "the hub does not take the token that is set; give a valid one that may read: {token}",
    Access.TERMS_NOT_ACCEPTED: "open {page} with the account of the token and accept the terms; a fine-grained token "
    "also needs access to public gated repositories",
    Access.NOT_FOUND: "check the spelling of {repo}; a private model needs a token that may read it: {token}",
    Access.REVISION_NOT_FOUND: "choose a branch, tag or commit that is listed at {page}",
    Access.UNREACHABLE: "check the network, the proxy and HF_ENDPOINT, and try again",
    Access.OFFLINE: "unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE to ask the hub",
}


class ModelAvailability(msgspec.Struct, frozen=True):
    """What is known of a model; sizes are bytes, what could not be learned is None.

    `detail` is the evidence, free of any token. `complete` says that everything that vLLM loads is in the cache,
    and `folder` is then where. `files` is what vLLM loads, empty when the hub was not asked or did not say.
    """

    repo: str
    revision: str
    access: Access
    detail: str = ""
    commit: str | None = None
    gated: bool | None = None
    total_bytes: int | None = None
    cached_bytes: int = 0
    missing_bytes: int | None = None
    complete: bool = False
    folder: str | None = None
    files: tuple[HubFile, ...] = ()


async def look_up_model(repo: str, revision: str = "main") -> ModelAvailability:
    """Return what the hub and the cache say of `repo` within ten seconds; a folder is taken as it is.

    When the hub is not asked or gives nothing, a snapshot that is whole by its own index counts as complete.
    """
    if found := _folder(repo, revision):
        return found
    if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo:
        return ModelAvailability(repo, revision, Access.NOT_FOUND, "it is neither a folder nor owner/name")
    if not cache.is_safe_name(revision):
        return ModelAvailability(repo, revision, Access.REVISION_NOT_FOUND, "it is no branch, tag or commit")
    try:
        return _from_hub(repo, revision, await client.ask_hub(repo, revision))
    except HubAccessError as refused:
        return _from_cache(repo, revision, refused)


def find_local_model(repo: str, revision: str = "main") -> ModelAvailability | None:
    """Return the model when it is here, a folder or whole in the cache; None otherwise. The hub is not asked."""
    if folder := _folder(repo, revision):
        return folder
    if not _REPO.fullmatch(repo) or not cache.is_safe_name(revision):
        return None
    found = _from_cache(repo, revision, HubAccessError(Access.OFFLINE, "not asked"))
    return found if found.complete else None


def read_local_model(model: ModelAvailability) -> LocalModel:
    """Return the shape of a model by its config.json, where it is on this machine, and the size of its files."""
    return LocalModel(_read_config(model), model.total_bytes)


def _read_config(model: ModelAvailability) -> ModelConfig | None:
    if model.folder is None:
        return None
    try:
        config = msgspec.json.decode((Path(model.folder) / "config.json").read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return kv_cache.read_model_shape(config) if isinstance(config, dict) else None


def _folder(repo: str, revision: str) -> ModelAvailability | None:
    if local := cache.find_local_folder(repo):
        return _complete(
            ModelAvailability(repo, revision, Access.OPEN, "a folder"), local, cache.measure_local_size(local)
        )
    return None


def advise_access(model: ModelAvailability) -> str:
    """Return what the user can do about the model's `access`, empty when there is nothing to do."""
    page = f"{cache.hub_endpoint()}/{model.repo}"
    return _ADVICE.get(model.access, "").format(page=page, repo=model.repo, token=_GIVE_TOKEN)


def _from_hub(repo: str, revision: str, info: RepositoryInfo) -> ModelAvailability:
    files = cache.select_loaded_files(_file(sibling) for sibling in info.siblings)
    gated = info.gated not in {None, False}
    access = Access.GRANTED if gated or info.private else Access.OPEN
    sizes = [file.size for file in files if file.size is not None]
    detail = "" if len(sizes) == len(files) else "the hub does not say how large its files are"
    if not cache.select_weight_files(file.name for file in files):
        detail = "it holds no *.safetensors and no *.bin"
    total = None if detail else sum(sizes)
    complete = not detail and cache.has_all_files(repo, info.sha, files)
    cached = cache.measure_cached_bytes(repo, info.sha, files)
    return ModelAvailability(
        repo,
        revision,
        access,
        detail,
        commit=info.sha,
        gated=gated,
        total_bytes=total,
        cached_bytes=cached,
        missing_bytes=None if total is None else total - cached,
        complete=complete,
        folder=str(cache.snapshot_folder(repo, info.sha)) if complete else None,
        files=files,
    )


def _from_cache(repo: str, revision: str, refused: HubAccessError) -> ModelAvailability:
    commit = cache.read_cached_commit(repo, revision)
    model = ModelAvailability(repo, revision, refused.access, refused.detail, commit=commit, gated=refused.gated)
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


def _file(sibling: RepositoryFile) -> HubFile:
    stated = sibling.lfs.sha256 if sibling.lfs else sibling.blob or ""
    etag = stated if _ETAG.fullmatch(stated) else ""
    size = sibling.size if sibling.size is None or sibling.size >= 0 else None
    return HubFile(sibling.rfilename, size, etag, large=sibling.lfs is not None and len(etag) == 64)
