"""The rounds of a tune: plan the next candidates from the boots measured so far. Pure, except for planning.

Axes are varied one after the other, each on the best setting so far, by successive halving: every candidate gets a
boot, the better half another one, until one is left or a difference is significant. The last rounds boot the best and
the published setting alternately: the choice itself favours lucky boots, so only boots after it measure the gain. The
number of these boots depends on the budget and the seconds of a boot, never on the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace
from packaging.version import Version

from dflash_tui.common.errors import UsageError
from dflash_tui.events import Phase
from dflash_tui.experiments import variation
from dflash_tui.experiments.analysis import answers, verdict
from dflash_tui.experiments.analysis.measures import (
    START,
    TOKENS,
    collect_measure,
    compare_measure,
    select_measured_boots,
)
from dflash_tui.experiments.analysis.report import OutputVerdict, TuneOutcome, Verdict
from dflash_tui.experiments.analysis.verdict import NEAR
from dflash_tui.experiments.builder import are_alike
from dflash_tui.experiments.design import CONFIRM, PUBLISHED, Arm, Boot, KeptAnswer, RoundBegan, Tuning
from dflash_tui.experiments.progress import Progress
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.planning import fast_set_up, patch_file, patch_selection
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Mode, SetUp
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.request import OPTION_FIELDS, LaunchRequest

_SHORT = {"num_speculative_tokens": "n", "mode": "", "set_up": ""}
_LOADER = "load-format"
_START_MEASURE = "start."
_BACKENDS = "flash_attn,triton_attn,flashinfer"
_DRAFTER_BACKEND, _DRAFT_SAMPLING = "speculation.attention_backend", "speculation.draft_sample_method"
_REJECTION = "speculation.rejection_sample_method"
# Values to try for each speculation setting, and the first release that supports it.
_OF_SPECULATION = {
    _DRAFTER_BACKEND: (_BACKENDS, "0.21.0"),
    _DRAFT_SAMPLING: ("probabilistic", "0.22.0"),
    _REJECTION: ("block", "0.26.0"),
}
# In this release, probabilistic drafts change the distribution of answers (vllm#54282).
_WRONG_PROBABILISTIC = Version("0.28.0")
_RUNNER = "env.VLLM_USE_V2_MODEL_RUNNER"
_FIRST_WITH_V2, _ALWAYS_V2 = Version("0.24.0"), Version("0.29.0")
_FIRST_WITH_INSTANTTENSOR = "0.29.0"
_SEQUENCES = (2, 4, 8, 16)
_MOST_SEQUENCES = 3
_MOST_ROUNDS = 3
# Boots of each arm in the last rounds: two show a spread, more than five hardly narrow the interval.
_LEAST_CONFIRMING, _MOST_CONFIRMING = 2, 5
_TRIES_OF_PUBLISHED = 2
# One boot each of the published setting and the best, and two more of each to confirm.
BOOTS_FOR_A_VERDICT = 6
FAST_SET_UP = f"set_up={SetUp.FAST}"
NO_ROOM = "the budget has no room for it"
_ALIKE = {OutputVerdict.ALIKE: "yes", OutputVerdict.DIFFERENT: "no", OutputVerdict.UNKNOWN: "unknown"}


class Candidate(NamedTuple):
    """A setting to try, with its resolved recipe."""

    arm: Arm
    resolved: ResolvedRecipe


class Proposal(NamedTuple):
    """Settings that have not been tried, and those that cannot be, with reasons."""

    candidates: list[Candidate]
    left_out: dict[str, str]


def propose_candidates(
    axis: str, best: Arm, arms: Sequence[Arm], plan: Callable[[LaunchRequest], PlannedLaunch]
) -> Proposal:
    """Return `best` with each value of an axis (`KEY=VALUE,VALUE`) that differs from all `arms`."""
    proposal, key = Proposal([], {}), axis.partition("=")[0]
    for value, changes in variation.parse_variation(axis, least=1).arms.items():
        try:
            request, planned = _plan_candidate(best.request.with_changes(changes), arms[0].request, plan)
        except UsageError as error:
            proposal.left_out[f"{key}={value}"] = error.what
            continue
        skipped, asked = planned.plan.skipped_patches, [name.removeprefix("patches.") for name in changes.settings]
        others = [model for model in planned.plan.models if model not in arms[0].plan.models]
        here = planner.find_local_models(planned.plan) if others else {}
        missing = [model.name for model in others if (model.name, model.revision) not in here]
        if why := next((skipped[patch] for patch in asked if patch in skipped), ""):
            proposal.left_out[key] = why
        elif missing:
            absent = f"{', '.join(missing)} is not on this machine"
            proposal.left_out[f"{key}={value}"] = f"{absent}, and its download would use up the budget"
        else:
            arm = Arm(name_setting(arms[0].request, request), request, planned.plan)
            if not any(are_alike(arm, other) for other in (*arms, *(each.arm for each in proposal.candidates))):
                proposal.candidates.append(Candidate(arm, planned.resolved))
    return proposal


def _plan_candidate(
    request: LaunchRequest, published: LaunchRequest, plan: Callable[[LaunchRequest], PlannedLaunch]
) -> tuple[LaunchRequest, PlannedLaunch]:
    """Return a candidate and its plan, in the published set-up if it has no fast one."""
    try:
        return request, plan(request)
    except UsageError:
        if request.set_up is not SetUp.FAST:
            raise
        request = replace(request, set_up=published.set_up)
        return request, plan(request)


def name_setting(published: LaunchRequest, request: LaunchRequest) -> str:
    """Return the name of a setting: its differences from the published one, such as `graphs n=11`."""
    words = []
    for name in OPTION_FIELDS:
        value = getattr(request, name)
        if value is not None and value != getattr(published, name):
            short = _SHORT.get(name, name)
            words.append(f"{short}={value}" if short else str(value))
    for name, value in request.settings.items():
        if published.settings.get(name) != value:
            patch = name.replace("patches.", "patch." if value == "true" else "without patch.", 1)
            words.append(patch if name.startswith("patches.") else f"{name}={value}")
    return " ".join(words) or PUBLISHED


def judges_starts(key: str) -> bool:
    """Whether an axis changes how a server starts, not how fast it answers."""
    return key == _LOADER or key.startswith(_START_MEASURE)


def list_axes(
    resolved: ResolvedRecipe, plan: Plan, *, temperature: float | None, streams: int
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the axes of a tune of this launch, the largest effects first, and those left out, with reasons.

    `streams` is the highest number of concurrent requests.
    """
    left_out: dict[str, str] = {}
    recipe = resolved.recipe
    methods = [f"method={','.join([recipe.method, *recipe.methods])}"] if recipe.methods else []
    # Eager only on a CPU, which has no CUDA graphs, or if it is published.
    eager = [Mode.EAGER] if plan.on_cpu or plan.mode is Mode.EAGER else []
    modes = [*([] if plan.on_cpu else [Mode.GRAPHS]), Mode.COMPILE, *eager]
    fast = fast_set_up.find_fast_set_up(resolved, plan.num_speculative_tokens, streams)
    axes = [FAST_SET_UP] if fast else []
    axes += [f"mode={','.join(modes)}", *methods, *_list_patches(resolved, plan, left_out)]
    vllm = Version(resolved.engine.vllm)
    if plan.on_cpu:
        left_out |= {
            f"attention-backend, {_DRAFTER_BACKEND}": "a CPU has one attention backend",
            "max-num-seqs": "it decides which CUDA graphs are captured, and a CPU has none",
            _LOADER: "the other loaders load onto a GPU",
        }
    elif _FIRST_WITH_V2 <= vllm < _ALWAYS_V2:
        axes.append(f"{_RUNNER}=1")
    # Quarters of the most tokens that the drafter can draft, and 0.
    if most := (resolved.drafter.max_tokens if resolved.drafter else None) or plan.num_speculative_tokens:
        axes.append("n=" + ",".join(map(str, dict.fromkeys((most, most * 3 // 4, most // 2, most // 4, 0)))))
    axes += [] if plan.on_cpu else [f"attention-backend={_BACKENDS}"]
    if plan.num_speculative_tokens:
        axes += _list_speculation(vllm, plan, temperature, left_out)
    if not plan.on_cpu:
        enough = [count for count in _SEQUENCES if count >= streams] or [streams]  # at least as many as are sent
        loaders = ["fastsafetensors"]
        if vllm >= Version(_FIRST_WITH_INSTANTTENSOR):
            loaders.append("instanttensor")
        else:
            left_out[f"{_LOADER}=instanttensor"] = f"vLLM {vllm} does not install it; {_FIRST_WITH_INSTANTTENSOR} does"
        axes += [f"max-num-seqs={','.join(map(str, enough[:_MOST_SEQUENCES]))}", f"{_LOADER}={','.join(loaders)}"]
    return tuple(axes), left_out


def _list_patches(resolved: ResolvedRecipe, plan: Plan, left_out: dict[str, str]) -> list[str]:
    """Return the patches, including experimental ones, that the release supports and the plan lacks."""
    patches = [patch for patch in patch_file.load_all_patches()[0] if patch.name not in plan.patches]
    mine = [patch for patch in patches if not patch.recipes or resolved.recipe.name in patch.recipes]
    names = [patch.name for patch in mine if patch.distribution == resolved.engine.distribution]
    with_patches = replace(resolved, patches=tuple(dict.fromkeys((*resolved.patches, *names))))
    skipped = patch_selection.select_patches(with_patches, patchable=True).skipped
    left_out |= {f"patch.{name}": skipped[name] for name in names if name in skipped}
    return [f"patch.{name}=on" for name in names if name not in skipped]


def _list_speculation(vllm: Version, plan: Plan, temperature: float | None, left_out: dict[str, str]) -> list[str]:
    axes = []
    for key, (values, first) in _OF_SPECULATION.items():
        if key == _DRAFTER_BACKEND and plan.on_cpu:
            continue
        if key != _DRAFTER_BACKEND and temperature == 0:
            left_out[key] = "it changes nothing at temperature 0; --temperature 0.7 tries it"
        elif vllm < Version(first):
            left_out[key] = f"vLLM {vllm} does not have it; {first} does"
        elif key == _DRAFT_SAMPLING and vllm == _WRONG_PROBABILISTIC:
            left_out[key] = f"answers differ from those without drafts in vLLM {vllm} (vllm#54282)"
        else:
            axes.append(f"{key}={values}")
    return axes


# Turns an axis, the best arm so far and all arms into candidates.
Propose = Callable[[str, Arm, Sequence[Arm]], Proposal]


class NextRound(NamedTuple):
    """A round of a tune, and the resolved recipes of the arms that it adds."""

    event: RoundBegan
    resolved_recipes: list[ResolvedRecipe]


class _Search(NamedTuple):
    """A tune whose published setting has been measured, and its best arm so far."""

    progress: Progress
    tuning: Tuning
    leader: int

    @property
    def left(self) -> float:
        """The unspent seconds of the budget."""
        return self.tuning.budget - self.progress.spent

    @property
    def room(self) -> float:
        """The unspent seconds, less those of the fewest boots of the last rounds."""
        return self.left - _LEAST_CONFIRMING * self.cost_of_pair

    @property
    def cost_of_pair(self) -> float:
        """The seconds of one boot of the published setting and one of the best."""
        return _median_cost(self.progress, 0) + _median_cost(self.progress, self.leader)


def plan_round(progress: Progress, propose: Propose) -> NextRound | None:
    """Return the next round of a tune, or None if it is over."""
    tuning, last = progress.design.tuning, progress.rounds[-1] if progress.rounds else None
    if tuning is None:
        return None
    if not any(boot.arm == 0 and not boot.error for boot in progress.boots):
        again = sum(boot.arm == 0 for boot in progress.boots) < _TRIES_OF_PUBLISHED
        return NextRound(RoundBegan(time.time(), PUBLISHED, (0,), (0,)), []) if again else None
    if last and last.key == CONFIRM:  # the choice is final, whatever the last boots measure
        fresh = select_boots_of_last_rounds(progress)
        order = _order_confirming(_Search(progress, tuning, last.field[-1]), before=len(fresh) // 2)
        is_over = not order or any(boot.error for boot in fresh)
        return None if is_over else NextRound(RoundBegan(time.time(), CONFIRM, last.field, order), [])
    search = _Search(progress, tuning, choose_leader(progress))
    return (_narrow_field(search, last) if last else None) or _open_field(search, propose)


def list_key(axis: str) -> str:
    """Return the key of an axis, such as `mode`."""
    return variation.parse_variation(axis, least=1).key


def _narrow_field(search: _Search, last: RoundBegan) -> NextRound | None:
    progress = search.progress
    ranked = _rank_field(progress, last)
    staying = tuple(entry.arm for entry in ranked[: max(2, -(-len(ranked) // 2))] if not entry.is_shown)
    rounds = sum(entry.key == last.key for entry in progress.rounds)
    cost = sum(_median_cost(progress, arm) for arm in staying)
    # Measured twice and so close that it hardly matters which of them is kept.
    alike = rounds > 1 and all(-entry.behind < NEAR for entry in ranked if entry.arm in staying)
    if len(staying) < 2 or alike or rounds >= _MOST_ROUNDS or cost > search.room:
        return None
    return NextRound(RoundBegan(time.time(), last.key, staying, staying), [])


def _open_field(search: _Search, propose: Propose) -> NextRound:
    arms, leader = search.progress.design.arms, search.leader
    keys = [list_key(axis) for axis in search.tuning.axes]
    after = max((keys.index(began.key) + 1 for began in search.progress.rounds if began.key in keys), default=0)
    left_out: dict[str, str] = {}
    for axis, key in zip(search.tuning.axes[after:], keys[after:], strict=True):
        proposal = propose(axis, arms[leader], arms)
        again = (leader,) if judges_starts(key) else ()  # starts are compared only with those of the same round
        fitting = _select_affordable(search, proposal.candidates, again)
        left_out |= proposal.left_out
        left_out |= {candidate.arm.name: NO_ROOM for candidate in proposal.candidates[len(fitting) :]}
        if fitting:
            added = tuple(range(len(arms), len(arms) + len(fitting)))
            entering = tuple(candidate.arm for candidate in fitting)
            field, order = (leader, *added), (*again, *added)
            event = RoundBegan(time.time(), key, field, order, arms=entering, left_out=left_out)
            return NextRound(event, [candidate.resolved for candidate in fitting])
    field = (0, leader) if leader else (0,)
    return NextRound(RoundBegan(time.time(), CONFIRM, field, _order_confirming(search), left_out=left_out), [])


def _select_affordable(search: _Search, candidates: Sequence[Candidate], again: Sequence[int]) -> list[Candidate]:
    room = search.room - sum(_median_cost(search.progress, arm) for arm in again)
    fitting: list[Candidate] = []
    for candidate in candidates:
        room -= _guess_cost(search.progress, candidate.arm.plan.mode)
        if room < 0:
            break
        fitting.append(candidate)
    return fitting


def _order_confirming(search: _Search, before: int = 0) -> tuple[int, ...]:
    """Return the boots of a last round, published and best in turn, after `before` pairs of boots."""
    pairs = int(search.left / max(1e-9, search.cost_of_pair)) if search.leader else 0
    arms = variation.order_boots(2, min(before + pairs, _MOST_CONFIRMING))
    return tuple((0, search.leader)[place] for place in arms[2 * before :])


class _Standing(NamedTuple):
    """An arm of a field: its log ratio to the best, and whether it is significantly worse."""

    arm: int
    behind: float
    is_shown: bool


def _rank_field(progress: Progress, of: RoundBegan) -> list[_Standing]:
    """Return the measured arms of a round's field, the best first.

    Axes that change only the start are judged by the seconds of starts of their own rounds, all others by tok/s.
    """
    failed = {boot.arm for boot in progress.boots if boot.error}
    measure = START if judges_starts(of.key) else TOKENS
    since = _find_first_boot(progress, of.key) if measure == START else 0
    logs = collect_measure(progress.design, [boot for boot in progress.boots if boot.number >= since], measure)
    alive = [arm for arm in of.field if arm not in failed - {0} and logs[arm]]
    apart = {arm: compare_measure(logs, alive[0], arm, measure) for arm in alive}
    means = {arm: mean.log for arm, mean in apart.items() if mean}
    ranked = sorted(means, key=lambda arm: -means[arm])
    differences = {arm: compare_measure(logs, ranked[0], arm, measure) for arm in ranked[1:]}
    shown = {arm for arm, difference in differences.items() if difference and difference.is_shown}
    return [_Standing(arm, means[arm] - means[ranked[0]], arm in shown) for arm in ranked]


def choose_leader(progress: Progress) -> int:
    """Return the best arm so far: that of the last field, or the previous best if it is nearly as good."""
    searched = [entry for entry in progress.rounds if entry.key != CONFIRM]
    if not searched or not (ranked := _rank_field(progress, searched[-1])):
        return 0
    before = next(entry.field[0] for entry in searched if entry.key == searched[-1].key)
    behind = {entry.arm: -entry.behind for entry in ranked}
    return before if behind.get(before, math.inf) < NEAR else ranked[0].arm


def _median_cost(progress: Progress, arm: int) -> float:
    """Return the seconds of another boot of an arm: the median of its own boots, else `_guess_cost`."""
    own = [_reckon_again(boot) for boot in progress.boots if boot.arm == arm and not boot.error]
    return median(own) if own else _guess_cost(progress, progress.design.arms[arm].plan.mode)


def _guess_cost(progress: Progress, mode: Mode) -> float:
    """Return the seconds of a setting's first boot: the median of its mode, else the longest of all."""
    good = [boot for boot in progress.boots if not boot.error]
    alike = [_reckon_first(boot) for boot in good if progress.design.arms[boot.arm].plan.mode is mode]
    reckon = _reckon_first if mode is Mode.COMPILE else _reckon_again
    return median(alike) if alike else max(map(reckon, good), default=0.0)


def _reckon_again(boot: Boot) -> float:
    """Return the seconds of a repeat of this boot; after a cold start the cache saves the compile time."""
    return _reckon_first(boot) - (boot.phases.get(Phase.COMPILE, 0.0) if boot.cache == "cold" else 0.0)


def _reckon_first(boot: Boot) -> float:
    """Return the seconds of a boot of another setting, which reuses what the first boot prepared."""
    return (boot.took or 0.0) + ((boot.prepared or 0.0) if boot.cache != "cold" else 0.0)


def reckon_verdict_budget(boots: Sequence[Boot], spent: float) -> float:
    """Return the budget of a first verdict: `spent`, one boot of another setting, and two more of each."""
    published = [boot for boot in boots if not boot.error]
    again = (BOOTS_FOR_A_VERDICT - 2) * max(map(_reckon_again, published))
    return spent + max(map(_reckon_first, published)) + again


def _find_first_boot(progress: Progress, key: str) -> int:
    first = after = len(progress.design.order)
    for search_round in reversed(progress.rounds):
        after -= len(search_round.order)
        first = after if search_round.key == key else first
    return first


def judge_tune(progress: Progress, kept_answers: Sequence[KeptAnswer] = ()) -> TuneOutcome:
    """Return the outcome of a tune; if it still runs or was stopped, the outcome so far.

    The best is compared by the boots of the last rounds only, if both arms have some, since earlier boots led to the
    choice. All boots of the other arms count.
    """
    design, boots = progress.design, progress.boots
    last = progress.rounds[-1] if progress.rounds else None
    is_chosen = last is not None and last.key == CONFIRM
    best = last.field[-1] if last and is_chosen else choose_leader(progress)
    since = _find_first_boot(progress, CONFIRM)
    fresh = [boot for boot in boots if boot.number >= since or boot.arm not in {0, best}]
    confirmed = bool(best) and is_chosen and all(select_measured_boots(fresh, arm) for arm in (0, best))
    used = fresh if confirmed else boots
    comparison = verdict.compare_pair(design, used, 0, best, measure=TOKENS, comparisons=1) if best else None
    alike = "yes"
    if comparison:
        outputs = answers.compare_outputs(design, boots, 0, best, kept_answers)
        comparison, alike = replace(comparison, outputs=outputs), _ALIKE[outputs.verdict]
    left_out = dict(design.tuning.left_out) if design.tuning else {}
    for search_round in progress.rounds:
        left_out |= search_round.left_out
    tried = {boot.arm for boot in boots if not boot.error}
    names = {arm.name for place, arm in enumerate(design.arms) if place in tried}
    return TuneOutcome(
        best=best,
        comparison=comparison,
        confirmed=confirmed,
        answers=alike,
        tried=len(tried),
        dropped={design.arms[boot.arm].name: boot.error for boot in boots if boot.error and boot.arm not in tried},
        left_out={name: why for name, why in left_out.items() if name not in names},
        spent=progress.spent,
    )


def select_boots_of_last_rounds(progress: Progress) -> list[Boot]:
    """Return the boots of the last rounds, those after the choice of the best."""
    since = _find_first_boot(progress, CONFIRM)
    return [boot for boot in progress.boots if boot.number >= since]


def is_worth_keeping(found: TuneOutcome) -> bool:
    """Whether the best is saved as a recipe: it is faster and not shown to answer differently."""
    return is_faster(found) and found.answers != "no"


def is_faster(found: TuneOutcome) -> bool:
    """Whether the best is significantly faster than the published setting, by boots after the choice."""
    comparison = found.comparison
    return bool(found.confirmed and comparison and comparison.word is Verdict.FASTER and not comparison.suggestive)
