"""Has the server without speculation score the answers that another arm of the experiment gave, token by token."""

from __future__ import annotations

import msgspec

from dflash_tui.benchmark.token_scores import MOST_POSITIONS, TokenScorer, measure_gaps, measure_shifts
from dflash_tui.common import bounded_http
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.answers import PromptKey, locate_difference
from dflash_tui.experiments.design import AnswerCheck, Design, KeptAnswer
from dflash_tui.runs.run import Run

# Log-probabilities are float32: differences of less say nothing.
_DIGITS = 4


async def check_kept_answers(design: Design, arm: int, run: Run) -> tuple[AnswerCheck, ...]:
    """Return a check of each answer of other arms to a prompt that `run`, a server of `arm`, has answered, too."""
    folder = store.experiment_folder(design.id)
    others = {boot.run for boot in store.read_progress(folder).boots if boot.arm != arm and not boot.error}
    kept = [(PromptKey(line.kind, line.streams, line.round), line) for line in store.read_answers(folder)]
    ours = {key: line for key, line in kept if line.run == run.id}
    theirs = {key: line for key, line in kept if line.run in others}
    async with TokenScorer(run.url, run.plan.served_name, run.api_key) as scorer:
        return tuple([await _check(scorer, theirs[key], ours[key]) for key in ours if key in theirs])


async def _check(scorer: TokenScorer, theirs: KeptAnswer, ours: KeptAnswer) -> AnswerCheck:
    check = AnswerCheck(theirs.kind, theirs.streams, theirs.round)
    prompt, ours_tokens, theirs_tokens = theirs.answer.prompt, ours.answer.tokens, theirs.answer.tokens
    if not (ours_tokens and theirs_tokens) or prompt != ours.answer.prompt:
        return msgspec.structs.replace(check, error="the server did not name the tokens")
    if (room := MOST_POSITIONS - len(prompt)) < 1 or not prompt:
        return msgspec.structs.replace(check, error=f"the prompt has more than {MOST_POSITIONS} tokens")
    scored = theirs_tokens[:room]
    try:
        tokens, decoded = await scorer.decode(prompt, len(ours_tokens[:room]))
        read = await scorer.read(prompt, tokens)
        gaps = measure_gaps(scored, read if tokens == [*scored] else await scorer.read(prompt, scored))
    except (bounded_http.BadResponse, *bounded_http.FAILED) as error:
        return msgspec.structs.replace(check, error=bounded_http.describe_failure(error))
    shifts, place = measure_shifts(tokens, decoded, read), locate_difference(ours_tokens, theirs_tokens)
    if place is not None and place >= room:
        return msgspec.structs.replace(check, error=f"the answers part after {MOST_POSITIONS} tokens")
    worst = max(range(len(gaps)), key=gaps.__getitem__)
    return msgspec.structs.replace(
        check,
        tokens=len(gaps),
        parted=None if place is None else place + 1,
        ends_early=place is not None and place >= min(len(ours_tokens), len(theirs_tokens)),
        gap=round(gaps[worst], _DIGITS),
        place=worst + 1,
        rounding=round(max(shifts, default=0.0), _DIGITS),
        positions=len(shifts),
    )
