"""Prometheus text of a vLLM server -> counters, and the DFlash arithmetic over a window of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dflash_tui.core.events import Counters

_SPEC = "vllm:spec_decode_num_"
_WANTED = {
    "vllm:generation_tokens_total": "generated",
    "vllm:prompt_tokens_total": "prompt",
    f"{_SPEC}drafts_total": "steps",
    f"{_SPEC}draft_tokens_total": "proposed",
    f"{_SPEC}accepted_tokens_total": "accepted",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
}
_PER_POSITION = f"{_SPEC}accepted_tokens_per_pos_total"
_KV_USAGE = "vllm:kv_cache_usage_perc"
_NAMES = (*_WANTED, _PER_POSITION, _KV_USAGE)


class Rates(msgspec.Struct, frozen=True):
    """What a window between two readings says.

    `tok_s` and `steps_s` are per second. `acceptance` = accepted / proposed and `acceptance_length` =
    1 + accepted / steps (the bonus token counts) are None when the window holds no step; `per_position[p]` is
    the share of steps whose token at position p was accepted.
    """

    seconds: float
    tok_s: float
    steps: float = 0.0
    steps_s: float | None = None
    acceptance: float | None = None
    acceptance_length: float | None = None
    per_position: tuple[float, ...] = ()


def parse(text: str) -> Counters | None:
    """Return the counters in a /metrics body, summed over engines (`kv_usage`: the fullest engine's).

    Only the lines of the families used here reach the parser: the whole text costs six times as much.
    Returns None when the text is not from a vLLM server (no generation counter in it).
    """
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    kv_usage: float | None = None
    for name, labels, value in _samples(line for line in text.splitlines() if line.startswith(_NAMES)):
        if name in _WANTED:
            sums[_WANTED[name]] = sums.get(_WANTED[name], 0.0) + value
        elif name == _PER_POSITION and labels.get("position", "").isdecimal():
            position = int(labels["position"])
            positions[position] = positions.get(position, 0.0) + value
        elif name == _KV_USAGE:
            kv_usage = max(value, kv_usage or 0.0)
    if "generated" not in sums:
        return None
    return Counters(
        generated=sums["generated"],
        prompt=sums.get("prompt", 0.0),
        steps=sums.get("steps"),
        proposed=sums.get("proposed"),
        accepted=sums.get("accepted"),
        per_position=tuple(positions[p] for p in sorted(positions)),
        running=int(sums.get("running", 0)),
        waiting=int(sums.get("waiting", 0)),
        kv_usage=kv_usage,
    )


def _samples(lines: Iterable[str]) -> Iterable[tuple[str, dict[str, str], float]]:
    """Yield (name, labels, value) of each line that parses; a garbled line is left out."""
    # 60 ms that the panel's first paint, which folds states but parses nothing, is spared.
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    for line in lines:
        try:
            for family in text_string_to_metric_families(line + "\n"):
                for sample in family.samples:
                    if sample.value == sample.value and abs(sample.value) != float("inf"):
                        yield sample.name, dict(sample.labels), float(sample.value)
        except ValueError:
            continue


def rates(before: Counters, after: Counters, seconds: float) -> Rates | None:
    """Return the rates between two readings `seconds` apart.

    Returns None when no time passed or a counter fell (another server answered on the port).
    """
    made = after.generated - before.generated
    if seconds <= 0 or made < 0:
        return None
    if after.steps is None or before.steps is None:
        return Rates(seconds, made / seconds)
    steps = after.steps - before.steps
    proposed = (after.proposed or 0.0) - (before.proposed or 0.0)
    accepted = (after.accepted or 0.0) - (before.accepted or 0.0)
    if min(steps, proposed, accepted) < 0:
        return None
    shares: tuple[float, ...] = ()
    if steps > 0 and len(after.per_position) == len(before.per_position):
        shares = tuple(max(0.0, b - a) / steps for a, b in zip(before.per_position, after.per_position, strict=True))
    return Rates(
        seconds=seconds,
        tok_s=made / seconds,
        steps=steps,
        steps_s=steps / seconds,
        acceptance=accepted / proposed if proposed > 0 else None,
        acceptance_length=1 + accepted / steps if steps > 0 else None,
        per_position=shares,
    )
