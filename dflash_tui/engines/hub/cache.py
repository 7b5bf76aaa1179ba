"""The Hugging Face cache on disk, and which files of a model vLLM loads.

`models--owner--name/` holds `refs/<revision>` (a commit), `snapshots/<commit>/<file>` (links) and `blobs/<etag>`; a
blob that is being fetched ends in `.incomplete`. It is read without huggingface_hub, whose import takes longer than a
plan.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dflash_tui.common import paths

_TRUE = {"1", "ON", "YES", "TRUE"}
_COMMIT = re.compile(r"[0-9a-f]{40}")
DATASETS = "datasets/"
_BESIDE = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py")
_TEMPLATES = "additional_chat_templates/"
_INDEX = "model.safetensors.index.json"


class HubFile(msgspec.Struct, frozen=True):
    """A file of a repository on the hub."""

    name: str
    """Its path in the repository."""
    size: int | None
    """Its bytes; None when the hub does not say."""
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
    return {file.name: files[file.name] for file in select_loaded_files(HubFile(name, None) for name in sorted(files))}


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
    return all(file.size is not None and _size(at / file.name) == file.size for file in files)


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


def measure_cached_bytes(repo: str, commit: str, files: Iterable[HubFile]) -> int:
    """Return how many bytes of `files` are in the cache, including those of a download of ours that can be resumed."""
    at, blobs = snapshot_folder(repo, commit), repository_folder(repo) / "blobs"
    total = 0
    for file in files:
        places = (at / file.name, *((blobs / file.etag, blobs / f"{file.etag}.incomplete") if file.etag else ()))
        total += next((size for place in places if (size := _size(place)) is not None), 0)
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
        return sum(_size(path) or 0 for path in at.iterdir())
    except OSError:
        return 0


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None
