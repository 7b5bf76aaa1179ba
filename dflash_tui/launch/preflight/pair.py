"""Checks of a pair in a vLLM release. They need no GPU, so a plan for another machine shows them too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.version import Version

from dflash_tui.engines import model_config, model_hub
from dflash_tui.launch.preflight.check import Check, Fix, Situation, fail_check, warn_check
from dflash_tui.planning import cuda_graphs, kv_cache, methods, patch_file, serve_flags
from dflash_tui.planning.derivation.pair import find_missing_tokens
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Mode, Status, iterate_layers
from dflash_tui.planning.recipes.resolution import ResolvedRecipe, list_profiles
from dflash_tui.planning.request import Hint, LaunchChanges, hint_setting
from dflash_tui.planning.serve_flags import normalize_flag_names, read_whole_number

_PLUGINS = {"tool-call-parser": "tool-parser-plugin", "reasoning-parser": "reasoning-parser-plugin"}
# With one of these flags vLLM may use another tokenizer than the target's.
_OTHER_TOKENIZER = ("tokenizer", "tokenizer-mode", "tokenizer-revision", "skip-tokenizer-init")


def check_pair(resolved: ResolvedRecipe, plan: Plan) -> list[Check]:
    """Return the problems of the planned pair, release, number of drafted tokens and parsers."""
    return [
        *_check_broken(resolved, plan),
        *_check_release(resolved, plan),
        *_check_draft_length(resolved, plan),
        *_check_flashinfer(resolved, plan),
        *_check_parsers(plan),
    ]


def _check_broken(resolved: ResolvedRecipe, plan: Plan) -> Iterator[Check]:
    """Refuse a recipe that is known to fail; its reason names the settings that fix it."""
    standing = plan.standing
    if standing is None or standing.status is not Status.BROKEN:
        return
    why = " ".join(standing.why.split())
    mends = dict(re.findall(r"--set ([\w.-]+)=(?!NAME\b)([^\s,;)]+)", why))
    profiles = [name for name in list_profiles(resolved.recipe) if name != plan.profile]
    ways: list[str | Hint] = []
    for name, value in mends.items():
        ways += [hint_setting(name, value), ", or "]
    for name in profiles:
        ways += [Hint(LaunchChanges(profile=name)), ", or "]
    finding = f"broken on {plan.hardware.value}: {why.partition('. ')[0]}"
    yield fail_check("recipe", finding, [*ways, "another recipe"])


def _check_release(resolved: ResolvedRecipe, plan: Plan) -> Iterator[Check]:
    oldest = resolved.oldest_vllm
    since, until = resolved.oldest_patched, resolved.last_patched or plan.vllm
    in_range = since and Version(since) <= Version(plan.vllm) <= Version(until)
    patched = in_range and _patches_suffice(resolved, plan)
    if oldest and Version(plan.vllm) < Version(oldest) and not patched:
        releases_by_age = sorted(map(Version, recipe_loader.load_releases()))
        newer = next((version for version in releases_by_age if version >= Version(oldest)), oldest)
        problem = f"without patches this pair needs vLLM {oldest} or newer; the plan has {plan.vllm}"
        yield fail_check("vLLM", problem, Hint(LaunchChanges(vllm=str(newer))))


def _patches_suffice(resolved: ResolvedRecipe, plan: Plan) -> bool:
    """Whether the recipe's own patches make the pair run: one for every machine is applied, and none was disabled.

    Patches that the user added, or that are for one class of machines, do not count.
    """
    by_hand = {key.removeprefix("patches.") for key in resolved.changed}
    own = [name for name in plan.patches if name not in by_hand and not patch_file.load_patch(name).hardware]
    disabled = {*plan.disabled_patches}
    return bool(own) and all(disabled.isdisjoint(layer.patches) for _, layer in iterate_layers(resolved.recipe))


def _check_draft_length(resolved: ResolvedRecipe, plan: Plan) -> Iterator[Check]:
    drafter, tokens = resolved.drafter, plan.num_speculative_tokens
    most = drafter.max_tokens if drafter else None
    if most and tokens > most:
        figures = next((band for band in plan.expected if band.tokens == tokens and band.tok_s), None)
        published = f"; published with {tokens} by {figures.source}" if figures else ""
        finding = f"{tokens} drafted tokens, but its block was trained for {most}; vLLM takes them{published}"
        yield warn_check("drafts", finding, Hint(LaunchChanges(num_speculative_tokens=most)))


def _check_flashinfer(resolved: ResolvedRecipe, plan: Plan) -> Iterator[Check]:
    """Warn of FlashInfer capturing CUDA graphs in pieces, which the server does not report."""
    setting = cuda_graphs.find_flashinfer(resolved, normalize_flag_names(resolved.flags))
    if setting and plan.num_speculative_tokens and plan.mode is Mode.COMPILE and not resolved.recipe.for_cpu:
        cost = "; published for a GB10: 47.5 instead of 55.2 tok/s (vllm#49547)"
        finding = f"FlashInfer of vLLM {plan.vllm} verifies drafts with piecewise CUDA graphs{cost}"
        newer = Hint(LaunchChanges(vllm=str(cuda_graphs.find_flashinfer_release(resolved))))
        yield warn_check("attention", finding, [hint_setting(setting, "flash_attn"), ", or ", newer])


def _check_parsers(plan: Plan) -> Iterator[Check]:
    if any(plan.find_flag(name) is not None for name in _OTHER_TOKENIZER):
        return
    named = {flag: plan.find_flag(flag) for flag, plugin in _PLUGINS.items() if plan.find_flag(plugin) is None}
    parsers = {flag: parser for flag, parser in named.items() if parser}
    revision = next((model.revision for model in plan.models if model.name == plan.target), "main")
    model = model_hub.find_local_model(plan.target, revision) if parsers else None
    tokens = model_config.read_local_tokens(Path(model.folder)) if model and model.folder else None
    for flag, parser in parsers.items() if tokens else ():
        if missing := find_missing_tokens(flag, parser, tokens or ()):
            finding = f"{flag} {parser} needs {' and '.join(missing)}, which the target's tokenizer does not have"
            others = {"enable-auto-tool-choice": "null"} if flag == "tool-call-parser" else {}
            without, another = {flag: "null"} | others, hint_setting(flag, "NAME", is_example=True)
            fix: Fix = [Hint(LaunchChanges(settings=without)), ", or ", another, " for another"]
            yield fail_check("parsers", finding, fix)


# With this variable vLLM accepts a context beyond the target's positions.
_ALLOW_LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def check_files(resolved: ResolvedRecipe) -> Iterator[Check]:
    """Check that the files and folders named by flags exist."""
    for name, value in serve_flags.list_missing(resolved.flags).items():
        where = "does not exist" if Path(value).is_absolute() else "is not in the target's downloaded repository either"
        fix: Fix = [hint_setting(name, "PATH", is_example=True), ", or ", hint_setting(name, "null"), " without it"]
        yield fail_check("file", f"--{name}: {value} {where}", fix)


def check_package(situation: Situation) -> Iterator[Check]:
    """Check that the engine has the package that the method needs."""
    engine, method = situation.engine, situation.resolved.method
    package = methods.FACTS[method].package
    present = engine.packages if engine else situation.resolved.engine.packages
    if not package or package in {name.partition("==")[0].lower().replace("_", "-") for name in present}:
        return
    fix = f"add {package}==VERSION to engine.packages of the recipe, or choose another --method"
    if engine and engine.adopted:
        fix = f"install it in {engine.folder}, then dflash-tui engine adopt {engine.folder}; or choose another --method"
    yield fail_check("method", f"{method} needs the package {package}, which the engine does not have", fix)


def check_length(situation: Situation) -> Iterator[Check]:
    """Check the context as vLLM does, if the target's config.json is on this machine and does not scale positions."""
    flags = normalize_flag_names(situation.resolved.flags)
    model = situation.models[0].folder if situation.models else situation.plan.target
    config = model_hub.read_local_config(Path(model)) if model and Path(model).is_absolute() else None
    length = read_whole_number(flags, "max-model-len")
    if not length or config is None or _ALLOW_LONGER in situation.plan.env or "hf-overrides" in flags:
        return
    shape = kv_cache.read_model_shape(config)
    most = shape.max_position_embeddings if shape else None
    if most and length > most and not _scales_positions(config):
        finding = f"max-model-len is {length}, and the target's config.json has {most} positions: vLLM rejects that"
        yield fail_check("context", finding, [hint_setting("max-model-len", most), " or less"])


def _scales_positions(config: Mapping[str, Any]) -> bool:
    """Whether vLLM may accept more than `max_position_embeddings`: by a RoPE factor, or `model_max_length`."""
    parts = [part for part in config.values() if isinstance(part, Mapping)]
    return "model_max_length" in config or any("factor" in part or _scales_positions(part) for part in parts)
