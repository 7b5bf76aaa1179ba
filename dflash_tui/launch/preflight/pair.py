"""Checks of a pair of models in a release, which need no GPU: also a plan without one says what they find."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace
from packaging.version import Version

from dflash_tui.common.formatting import format_gib
from dflash_tui.engines.hub import model_config, model_lookup
from dflash_tui.launch import planner
from dflash_tui.launch.preflight.check import Check, Fix, fail_check, warn_check
from dflash_tui.machine.gpus import Gpu
from dflash_tui.planning import patch_file, releases
from dflash_tui.planning.derivation.pair import find_missing_tokens
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Recipe, Status
from dflash_tui.planning.recipes.resolution import ResolvedRecipe, list_profiles
from dflash_tui.planning.request import Hint, LaunchChanges, hint_setting, parse_settings

_PLUGINS = {"tool-call-parser": "tool-parser-plugin", "reasoning-parser": "reasoning-parser-plugin"}
# With one of them vLLM may take another tokenizer than the target's.
_OTHER_TOKENIZER = ("tokenizer", "tokenizer-mode", "tokenizer-revision", "skip-tokenizer-init")


def check_pair(resolved: ResolvedRecipe, plan: Plan, cards: Sequence[Gpu] = ()) -> list[Check]:
    """Return what is wrong with the pair as it is planned, its release, number of drafted tokens and parsers.

    Args:
        resolved: The recipe for one kind of machine.
        plan: What would be launched.
        cards: The GPUs that it takes; without any the memory of a typical one counts.
    """
    return [
        *_check_broken(resolved, plan, cards),
        *_check_release(resolved, plan),
        *_check_draft_length(resolved, plan),
        *_check_parsers(plan),
    ]


def _check_broken(resolved: ResolvedRecipe, plan: Plan, cards: Sequence[Gpu]) -> Iterator[Check]:
    """Refuse what is known to fail; the settings that its reason names mend it."""
    standing = plan.standing
    if standing is None or standing.status is not Status.BROKEN:
        return
    why = " ".join(standing.why.split())
    mends = dict(re.findall(r"--set ([\w.-]+)=(?!NAME\b)([^\s,;)]+)", why))
    profiles = [name for name in list_profiles(resolved.recipe) if name != plan.profile]
    ways: list[str | Hint] = []
    for name, value in mends.items():
        ways += [hint_setting(name, value), f"{_price_setting(resolved, plan, cards, name, value)}, or "]
    for name in profiles:
        ways += [Hint(LaunchChanges(profile=name)), ", or "]
    finding = f"broken on {plan.hardware.value}: {why.partition('. ')[0]}"
    yield fail_check("recipe", finding, [*ways, "another recipe"])


def _price_setting(resolved: ResolvedRecipe, plan: Plan, cards: Sequence[Gpu], name: str, value: str) -> str:
    """Return in brackets what a setting costs in KV cache; empty where it costs none, or nothing is known."""
    settings = resolved.flags | parse_settings({name: value})
    flags = {flag: setting for flag, setting in settings.items() if setting is not None}
    now, then = (
        planner.estimate_memory(changed, plan.mode, plan.num_speculative_tokens, cards)
        for changed in (resolved, replace(resolved, flags=flags))
    )
    if not (now and then and now.kv_needed and then.kv_needed and now.kv_needed != then.kv_needed):
        return ""
    sizes = f"{format_gib(then.kv_needed)} of KV cache instead of {format_gib(now.kv_needed)}"
    return f" ({then.max_model_len} tokens then take {sizes}; about {format_gib(then.kv_left)} are there for it)"


def _check_release(resolved: ResolvedRecipe, plan: Plan) -> Iterator[Check]:
    oldest = resolved.oldest_vllm
    since, until = resolved.oldest_patched, resolved.last_patched or plan.vllm
    in_range = since and Version(since) <= Version(plan.vllm) <= Version(until)
    patched = in_range and _patches_suffice(resolved, plan)
    if oldest and Version(plan.vllm) < Version(oldest) and not patched:
        releases_by_age = sorted(map(Version, releases.load_releases()))
        newer = next((version for version in releases_by_age if version >= Version(oldest)), oldest)
        problem = f"this pair is served right from {oldest} on without patches; the plan has {plan.vllm}"
        yield fail_check("vLLM", problem, Hint(LaunchChanges(vllm=str(newer))))


def _patches_suffice(resolved: ResolvedRecipe, plan: Plan) -> bool:
    """Whether the recipe's own patches make the pair run: some for every machine are in, and none was left out.

    What was added by hand, or is for one machine's kernels, does not.
    """
    by_hand = {key.removeprefix("patches.") for key in resolved.changed}
    own = [name for name in plan.patches if name not in by_hand and not patch_file.load_patch(name).hardware]
    return bool(own) and not set(plan.disabled_patches) & set(_list_recipe_patches(resolved.recipe))


def _list_recipe_patches(recipe: Recipe) -> Iterator[str]:
    for part in (recipe, *recipe.hardware.values(), *recipe.profiles.values(), *recipe.variants.values()):
        yield from part.patches


def _check_draft_length(resolved: ResolvedRecipe, plan: Plan) -> Iterator[Check]:
    """Warn of more tokens than the drafter's block has room for, which vLLM takes, with what was published of it."""
    drafter, tokens = resolved.drafter, plan.num_speculative_tokens
    most = drafter.max_tokens if drafter else None
    if most and tokens > most:
        figures = next((band for band in plan.expected if band.tokens == tokens and band.tok_s), None)
        published = f"; published with {tokens} by {figures.source}" if figures else ""
        finding = f"{tokens} drafted tokens, but its block was trained for {most}; vLLM takes them{published}"
        yield warn_check("drafts", finding, Hint(LaunchChanges(num_speculative_tokens=most)))


def _check_parsers(plan: Plan) -> Iterator[Check]:
    """Check that the target's tokenizer, where it is on this machine, has the tokens that the parsers insist on."""
    if any(plan.find_flag(name) is not None for name in _OTHER_TOKENIZER):
        return
    named = {flag: plan.find_flag(flag) for flag, plugin in _PLUGINS.items() if plan.find_flag(plugin) is None}
    parsers = {flag: parser for flag, parser in named.items() if parser}
    revision = next((model.revision for model in plan.models if model.name == plan.target), "main")
    model = model_lookup.find_local_model(plan.target, revision) if parsers else None
    tokens = model_config.read_local_tokens(Path(model.folder)) if model and model.folder else None
    for flag, parser in parsers.items() if tokens else ():
        if missing := find_missing_tokens(flag, parser, tokens or ()):
            finding = f"{flag} {parser} needs {' and '.join(missing)}, which the target's tokenizer does not have"
            others = {"enable-auto-tool-choice": "null"} if flag == "tool-call-parser" else {}
            without, another = {flag: "null"} | others, hint_setting(flag, "NAME", is_example=True)
            fix: Fix = [Hint(LaunchChanges(settings=without)), ", or ", another, " for another"]
            yield fail_check("parsers", finding, fix)
