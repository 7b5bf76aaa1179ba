"""Which patches a plan applies, why not the others, and what does without them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dflash_tui.planning import patch_applicability, patch_file
from dflash_tui.planning.methods import Method
from dflash_tui.planning.patch_applicability import VllmBuild
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.recipes.resolution import ResolvedRecipe


class PatchSelection(NamedTuple):
    """The patches of a plan, and what the release needs instead of the others."""

    applied: list[Patch]
    """The patches that a launch applies where the engine needs them."""
    skipped: dict[str, str]
    """Why each other patch of the recipe is not: name -> reason."""
    env: dict[str, str]
    """Variables that do without patches, in an environment that may not be patched."""
    speculation: dict[str, Any]
    """Keys of --speculative-config: the recipe's that the release knows, and those that do without a patch."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the patches that a launch applies."""
        return tuple(patch.name for patch in self.applied)


def select_patches(resolved: ResolvedRecipe, *, patchable: bool, judged: Mapping[str, str] = {}) -> PatchSelection:
    """Return which patches of a recipe are applied to the engine that it names.

    Args:
        resolved: The recipe for one kind of machine.
        patchable: Whether the environment may be patched.
        judged: Why the engine's own files say that it does not need a patch, by name; empty for one that it needs.

    Raises:
        UsageError: there is no patch of a name that was set by hand.
    """
    build = describe_planned_build(resolved)
    for name in resolved.disabled_patches:
        patch_file.load_patch(name)  # raises for a name that is none
    patches = {name: patch_file.load_patch(name) for name in resolved.patches}
    reasons = {
        name: explain_other_method(patch, resolved.method)
        or (judged[name] if name in judged else patch_applicability.explain_not_needed(patch, build, resolved.hardware))
        for name, patch in patches.items()
    }
    skipped = {name: why for name, why in reasons.items() if why}
    for name, patch in patches.items():
        if name not in skipped and patch.instead_of in patches:
            skipped[patch.instead_of] = f"{name} is its alternative"
    env: dict[str, str] = {}
    for name, patch in patches.items():
        if name not in skipped and patch.without_patch and not patchable:
            env |= patch.without_patch.env
            way = " and ".join(patch.without_patch.env)
            skipped[name] = f"{way} instead, since this environment may not be patched; {patch.without_patch.why}"
    applied = [patch for name, patch in patches.items() if name not in skipped]
    return PatchSelection(applied, skipped, env, _adapt_speculation(resolved, patches, applied, build))


def explain_other_method(patch: Patch, method: Method) -> str:
    """Return why a server that drafts by this method does not need the patch; empty when it may."""
    return f"for {', '.join(patch.methods)}" if patch.methods and method not in patch.methods else ""


def describe_planned_build(resolved: ResolvedRecipe) -> VllmBuild:
    """Return the build of vLLM that a recipe's engine is; its CUDA is that of the index unless it says another."""
    spec = resolved.engine
    return patch_applicability.assume_index_cuda(
        patch_applicability.describe_build(spec.distribution, spec.vllm, spec.packages, spec.torch_backend)
    )


def _adapt_speculation(
    resolved: ResolvedRecipe, patches: Mapping[str, Patch], applied: list[Patch], build: VllmBuild
) -> dict[str, Any]:
    """Return the recipe's keys of --speculative-config for this release.

    Without those that a patch stands for, and with those that do here what a patch does elsewhere. A build that is no
    release keeps all of the recipe's: its number does not tell whether it knows a key, and all but the oldest do.
    """
    dropped = {key for patch in applied if build.release for key in patch.stands_for}
    instead: dict[str, Any] = {}
    for patch in patches.values():
        if not explain_other_method(patch, resolved.method):
            instead |= patch_applicability.find_keys_instead(patch, build)
    return instead | {key: value for key, value in resolved.speculation.items() if key not in dropped}
