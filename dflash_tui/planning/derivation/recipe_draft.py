"""A derived pair as the text of a recipe file, with the rule behind each value as a comment. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import yaml

from dflash_tui.planning import releases
from dflash_tui.planning.derivation.checkpoint import Checkpoint
from dflash_tui.planning.derivation.class_rules import build_layers
from dflash_tui.planning.derivation.pair import BATCH_FLAGS, DerivedPair
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes.recipe import Recipe

_WHY = "Derived from the models' config.json by rules; nobody ran it."
_LONGEST_NAME = 60


def name_recipe(pair: DerivedPair) -> str:
    """Return a name for the recipe of a pair: the target's, the drafter's or the method's."""
    drafter = _last_part(pair.drafter.name) if pair.drafter else ""
    words = [_last_part(pair.target.name), drafter or pair.method.value]
    return re.sub(r"[^a-z0-9._-]+", "-", "-".join(words).lower()).strip("-._")[:_LONGEST_NAME] or "derived"


def write_recipe_text(pair: DerivedPair, cpu: Recipe | None = None) -> str:
    """Return the recipe of a pair as YAML that `recipe_loader` reads.

    Args:
        pair: The pair.
        cpu: A recipe for the CPU, whose engine, environment and patches it takes; without one it is for a GPU.
    """
    lines = [f"# {fact.name}: {fact.value} ({fact.rule})" for fact in pair.facts]
    head = "# Derived by dflash-tui from two config.json. recipes/README.md explains the keys.\n"
    mapping = _build_mapping(pair)
    if cpu:  # whose batches are small, and whose first run of one is slow
        flags = {name: value for name, value in mapping["flags"].items() if name not in BATCH_FLAGS}
        mapping |= _read_cpu_parts(cpu) | {"flags": flags}
    body = yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True, width=110)
    return head + "\n".join(lines) + "\n" + body


def _build_mapping(pair: DerivedPair) -> dict[str, Any]:
    target, newest = pair.target, [*releases.load_releases()][-1]
    what = _last_part(pair.drafter.name) if pair.drafter else str(pair.method)
    recipe: dict[str, Any] = {
        "title": f"{_last_part(target.name)} with {what}",
        "status": "experimental",
        "why": _WHY,
        "target": {"model": target.name, "served_name": _last_part(target.name).lower(), **_describe(target)},
    }
    if target.quantization:
        recipe["target"]["quantization"] = target.quantization
    if pair.drafter:
        recipe["drafter"] = {"model": pair.drafter.name, **_describe(pair.drafter)}
        if pair.method is Method.DFLASH:
            recipe["drafter"]["max_tokens"] = pair.tokens
    recipe |= {"method": pair.method.value} if pair.method is not Method.DFLASH else {}
    recipe["num_speculative_tokens"] = pair.tokens
    recipe |= {"speculation": pair.speculation} if pair.speculation else {}
    recipe |= {"oldest_vllm": str(pair.oldest_vllm)} if pair.oldest_vllm else {}
    recipe |= {"mode": "compile", "flags": pair.flags, "engine": {"vllm": str(pair.newest_vllm or newest)}}
    recipe |= {"warnings": [*pair.warnings]} if pair.warnings else {}
    recipe |= {"hardware": build_layers([*pair.class_rules])} if pair.class_rules else {}
    return recipe


def _read_cpu_parts(recipe: Recipe) -> dict[str, Any]:
    parts: dict[str, Any] = msgspec.to_builtins(recipe)
    return {"mode": "eager", **{name: parts[name] for name in ("engine", "env", "patches") if parts.get(name)}}


def _describe(model: Checkpoint) -> dict[str, Any]:
    size = round(model.size_gb, 3) if model.size_gb else 0.0
    fields: dict[str, Any] = {"size_gb": size or None, "gated": model.gated}
    shape = {name: value for name, value in msgspec.to_builtins(model.shape).items() if value} if model.shape else {}
    return {name: value for name, value in (fields | {"config": shape}).items() if value not in (None, {})}


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2] or name
