"""The published command under bare `vllm serve`, and ours: the two arms of `--vary stock,ours`. Pure.

Stock is what the recipe gives without us: its mode, its drafts, its flags and its variables. Of a launch request it has
what says which model is served and where; whatever else is named (mode, drafts, patches, measures, variables, flags
that are about speed) is ours. A recipe's patches stay in where the release does not run the pair right without them, or
the GPU has no kernels for it.
"""

from __future__ import annotations

from collections.abc import Callable

from packaging.version import Version

from dflash_tui.experiments.variation import Varied
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.planning import cuda_graphs, patch_file, startup_optimizations
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.request import LaunchChanges, LaunchRequest

VARIATION = "stock,ours"
KEY = "setup"
STOCK, OURS = VARIATION.split(",")
# Settings that say what is served, where, and with how much memory; both arms have them.
_SHARED = frozenset({
    "host", "synthetic", "load-format", "max-model-len", "gpu-memory-utilization", "quantization", "dtype", "seed",
    "hf-overrides", "hf-config-path", "config-format", "tokenizer", "tokenizer-mode", "tokenizer-revision",
    "skip-tokenizer-init", "trust-remote-code", "chat-template", "chat-template-content-format", "reasoning-parser",
    "default-chat-template-kwargs", "generation-config", "override-generation-config", "limit-mm-per-prompt",
    "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "distributed-executor-backend",
    "download-dir",
})  # fmt: skip
_DRAFTER = "drafter."
_SHARED_PARTS = ("target.", _DRAFTER, "restart.", "speculation.rejection_sample_method", "speculation.synthetic_")
_OUR_FIELDS = ("mode", "method", "num_speculative_tokens")
_Planner = Callable[[LaunchRequest], PlannedLaunch]


def build_variation(request: LaunchRequest, plan: _Planner) -> Varied:
    """Return the two arms of a launch request; where that names nothing of ours, ours is what our plan offers.

    Args:
        request: what both arms are about.
        plan: plans a request on this machine.

    Raises:
        UsageError: it cannot be planned.
    """
    without = LaunchChanges(removed=_OUR_FIELDS, removed_settings=_list_our_settings(request))
    published = plan(request.with_changes(without))
    return Varied(
        KEY,
        {STOCK: _take_out_measures(without, published), OURS: _offer_changes(request, plan(request), published)},
    )


def _take_out_measures(without: LaunchChanges, published: PlannedLaunch) -> LaunchChanges:
    """Return what makes a launch request the bare published command: the one place that says what stock is.

    Args:
        without: what takes out all that the request names as ours.
        published: the launch that is left, which still has what we do unasked.
    """
    unneeded = [name for name in published.plan.patches if not _needs_patch(published, name)]
    return LaunchChanges(
        removed=without.removed,
        removed_settings=without.removed_settings,
        settings=startup_optimizations.NONE_OF_THEM | {f"patches.{name}": "false" for name in unneeded},
    )


def _list_our_settings(request: LaunchRequest) -> tuple[str, ...]:
    own = request.method is not None  # its drafter is of no use to another method
    return tuple(name for name in request.settings if not is_shared(name) or (own and name.startswith(_DRAFTER)))


def is_shared(setting: str) -> bool:
    """Whether a setting says what is served or where, so that stock and ours both have it."""
    return setting.startswith(_SHARED_PARTS) or setting.partition(".")[0].replace("_", "-") in _SHARED


def _needs_patch(published: PlannedLaunch, name: str) -> bool:
    """Whether the server does not start, or runs the pair wrong, without a patch of the recipe."""
    oldest = published.resolved.oldest_vllm
    too_old = oldest is not None and Version(published.plan.vllm) < Version(oldest)
    return too_old or bool(patch_file.load_patch(name).hardware)


def _offer_changes(request: LaunchRequest, planned: PlannedLaunch, published: PlannedLaunch) -> LaunchChanges:
    """Return what makes a request ours: nothing where it names something that stock has not, else what plans offer.

    The panel names mode and drafts, also where they are the published ones.
    """
    ours, bare = planned.plan, published.plan
    named = any(getattr(ours, name) != getattr(bare, name) for name in _OUR_FIELDS)
    if named or _list_our_settings(request):
        return LaunchChanges()
    offered = cuda_graphs.is_choice(planned.resolved, planned.plan.mode, planned.plan.num_speculative_tokens)
    return LaunchChanges(mode=Mode.GRAPHS) if offered else LaunchChanges()
