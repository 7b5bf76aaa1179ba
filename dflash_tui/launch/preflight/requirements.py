"""Checks of what a plan asks of its engine, its target and this machine: a package, positions, files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dflash_tui.engines.hub import model_lookup
from dflash_tui.launch.preflight.check import Check, Fix, Situation, fail_check
from dflash_tui.planning import kv_cache, methods, serve_flags
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.request import hint_setting
from dflash_tui.planning.serve_flags import normalize_flag_names, read_whole_number

# With it vLLM takes a context beyond the target's positions.
_ALLOW_LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def check_requirements(situation: Situation) -> Iterator[Check]:
    """Check the package of the method, the files that flags name, and the target's positions for `max-model-len`."""
    yield from _check_package(situation)
    yield from check_files(situation.resolved)
    yield from _check_length(situation)


def check_files(resolved: ResolvedRecipe) -> Iterator[Check]:
    """Check that the files and folders are there that flags name."""
    for name, value in serve_flags.list_missing(resolved.flags).items():
        where = "is not there" if Path(value).is_absolute() else "is neither here nor in the target's repository here"
        fix: Fix = [hint_setting(name, "PATH", is_example=True), ", or ", hint_setting(name, "null"), " without it"]
        yield fail_check("file", f"--{name}: {value} {where}", fix)


def _check_package(situation: Situation) -> Iterator[Check]:
    engine, method = situation.engine, situation.resolved.method
    package = methods.FACTS[method].package
    present = engine.packages if engine else situation.resolved.engine.packages
    if not package or package in {name.partition("==")[0].lower().replace("_", "-") for name in present}:
        return
    fix = f"add {package}==VERSION to engine.packages of the recipe, or choose another --method"
    if engine and engine.adopted:
        fix = f"install it in {engine.folder}, then dflash-tui engine adopt {engine.folder}; or choose another --method"
    yield fail_check("method", f"{method} needs the package {package}, which the engine does not have", fix)


def _check_length(situation: Situation) -> Iterator[Check]:
    """Check the context as vLLM does, where the target's config.json is on this machine and scales no positions."""
    flags = normalize_flag_names(situation.resolved.flags)
    length, config = read_whole_number(flags, "max-model-len"), _read_target_config(situation)
    if not length or config is None or _ALLOW_LONGER in situation.plan.env or "hf-overrides" in flags:
        return
    shape = kv_cache.read_model_shape(config)
    most = shape.max_position_embeddings if shape else None
    if most and length > most and not _scales_positions(config):
        finding = f"max-model-len is {length}, and the target's config.json has {most} positions: vLLM refuses that"
        yield fail_check("context", finding, [hint_setting("max-model-len", most), " or less"])


def _read_target_config(situation: Situation) -> Mapping[str, Any] | None:
    model = situation.models[0].folder if situation.models else situation.plan.target
    return model_lookup.read_local_config(Path(model)) if model and Path(model).is_absolute() else None


def _scales_positions(config: Mapping[str, Any]) -> bool:
    """Whether vLLM may take more than `max_position_embeddings`: by a factor of RoPE, or a length for the tokenizer."""
    parts = [part for part in config.values() if isinstance(part, Mapping)]
    return "model_max_length" in config or any("factor" in part or _scales_positions(part) for part in parts)
