"""Inspect the models of a plan with its engine before the server starts, so that the server finds the results.

vLLM imports itself once more for the target's class and once for the drafter's, to learn a few booleans of each, and
keeps them in its cache root. The digests of these files are kept here, so that no engine is started when nothing is
missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.errors import EngineError
from dflash_tui.engines import engine_python, model_hub
from dflash_tui.engines.environments import Engine
from dflash_tui.planning.plan import Plan

_CACHE_ROOT = "VLLM_CACHE_ROOT"
# vLLM's class for a drafter, by the `speculators_model_type` in its config.json.
_DRAFTERS = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}


class _Outcome(msgspec.Struct, frozen=True):
    """The result for one model: the file that holds it, or the error."""

    entry: str = ""
    error: str = ""


_decoder = msgspec.json.Decoder(list[_Outcome])


def list_architectures(plan: Plan) -> list[tuple[str, ...]]:
    """Return the names that vLLM may use for the class of each model of the plan that is on this machine."""
    models = [(plan.target, False), *([(plan.drafter, True)] if plan.drafter else [])]
    revisions = {model.name: model.revision for model in plan.models}
    architectures = []
    for model, drafts in models:
        config = _read_config(model, revisions.get(model, "main"))
        if names := _list_names(config, drafts=drafts):
            architectures.append(names)
    return architectures


def list_uninspected(plan: Plan, engine: Engine) -> list[tuple[str, ...]]:
    """Return the architectures of the plan that a server of this engine would still have to inspect."""
    models = _read_record(plan, engine)
    kept = {key for key, (entry, digest) in models.items() if digest and _digest(entry) == digest}
    return [names for names in list_architectures(plan) if " ".join(names) not in kept]


def inspect_models(plan: Plan, engine: Engine, architectures: Sequence[tuple[str, ...]]) -> None:
    """Inspect these architectures with the engine's own Python and the cache root of the launch.

    Raises:
        EngineError: one of them could not be inspected; the others were.
        Cancelled: the caller was cancelled.
    """
    private_files.ensure_private_folder(paths.cache_folder())
    answer = engine_python.run_script(
        engine.python,
        "inspect_models.py",
        msgspec.json.encode(architectures).decode(),
        timeout=engine_python.IMPORT_TIMEOUT,
        env={_CACHE_ROOT: plan.env[_CACHE_ROOT]} if _CACHE_ROOT in plan.env else {},
    )
    outcomes = _decoder.decode(answer)
    models = _read_record(plan, engine) | {
        " ".join(names): (outcome.entry, _digest(outcome.entry))
        for names, outcome in zip(architectures, outcomes, strict=True)
        if outcome.entry
    }
    private_files.ensure_private_folder(_record_path(plan, engine).parent)
    private_files.replace_private_file(_record_path(plan, engine), msgspec.json.encode(models))
    if errors := [outcome.error for outcome in outcomes if outcome.error]:
        raise EngineError("a model could not be inspected", evidence=errors[0])


def _read_config(model: str, revision: str) -> dict[str, Any]:
    there = model_hub.find_local_model(model, revision)
    return (model_hub.read_local_config(Path(there.folder)) if there and there.folder else None) or {}


def _list_names(config: dict[str, Any], *, drafts: bool) -> tuple[str, ...]:
    listed = config.get("architectures")
    own = [name for name in listed[:1] if isinstance(name, str)] if isinstance(listed, list) else []
    if not drafts:
        return tuple(own)
    saved = str(config.get("speculators_model_type") or "")
    named = [_DRAFTERS[saved]] if saved in _DRAFTERS else []
    prefixed = [f"DFlash{name}" for name in own if "DFlash" not in name]
    return tuple(dict.fromkeys([*named, *prefixed, *own]))


def _digest(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""


def _read_record(plan: Plan, engine: Engine) -> dict[str, tuple[str, str]]:
    """Return the inspected models of an engine and cache root: model -> (file of the result, its digest)."""
    return untrusted_json.read_own_json(_record_path(plan, engine), dict[str, tuple[str, str]]) or {}


def _record_path(plan: Plan, engine: Engine) -> Path:
    place = f"{engine.folder}\n{plan.env.get(_CACHE_ROOT, '')}"
    return paths.cache_folder() / "inspected" / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"
