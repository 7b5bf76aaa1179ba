"""Which weights a model has: the commit of a repository, or a digest of a folder's files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dflash_tui.engines.hub import cache, model_lookup
from dflash_tui.planning.plan import Plan

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
    model = model_lookup.find_local_model(name, revision)
    if model is None or model.folder is None:
        return ""
    folder = Path(model.folder)
    return f"commit {folder.name}" if folder.parent.name == "snapshots" else _digest_folder(folder)


def _digest_folder(folder: Path) -> str:
    """Return a digest of the files that vLLM loads."""
    files = sorted(cache.list_loaded_files(folder).values())
    small = sum(path.stat().st_size for path in files) <= _MOST_HASHED
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder)} {size}\n".encode())
        if small or size < 1 << 20:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
