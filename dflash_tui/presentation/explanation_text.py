"""Text of what a log alone says about a failure, for the command line and the panel."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from dflash_tui.diagnosis.posted_log import NO_FAILURE, SLOW_SIGNS, LogExplanation
from dflash_tui.diagnosis.unknown_error import shorten_frame

_NARROWEST = 40
_BACKENDS = {"moe": "MoE", "gemm": "GEMM"}
_SURE = {"certain": "certain", "likely": "likely, the message may have other reasons", "guess": "a guess"}


def format_explanation(explanation: LogExplanation, width: int) -> str:
    """Return cause, what to do, evidence in full and how sure it is, in lines of at most `width` cells."""
    return "\n".join(_list_lines(explanation, max(_NARROWEST, width)))


def _list_lines(explanation: LogExplanation, width: int) -> Iterator[str]:
    sign = "✓" if explanation.kind == NO_FAILURE else "!" if explanation.kind in SLOW_SIGNS else "✗"
    yield from _wrap(f"{sign} ", explanation.cause, width)
    for step in explanation.fix:
        yield from _wrap("→ ", step, width)
    for line in explanation.evidence:
        yield from _wrap("  │ ", shorten_frame(line), width)
    yield from _wrap("  ", " · ".join(_list_facts(explanation)), width)
    if explanation.link:
        yield f"  see also: {explanation.link}"
    for warning in explanation.warnings:
        yield from _wrap("! ", warning, width)
    for note in explanation.notes:
        yield from _wrap("  note: ", note, width)


def _list_facts(explanation: LogExplanation) -> Iterator[str]:
    yield f"{_SURE[explanation.confidence]} ({explanation.kind})"
    if explanation.phase:
        yield "while serving" if explanation.phase == "up" else f"in the phase {explanation.phase}"
    if explanation.process:
        yield f"in {explanation.process}"
    if "engine_init_s" in explanation.figures:
        yield f"engine in {explanation.figures['engine_init_s']:.0f} s"
    if "acceptance_length" in explanation.figures:
        yield f"acceptance length {explanation.figures['acceptance_length']:.2f}"
    yield from (f"{name} {version}" for name, version in explanation.versions.items())
    yield from (f"{_BACKENDS.get(name, name)} {backend}" for name, backend in explanation.backends.items())


def _wrap(head: str, text: str, width: int) -> list[str]:
    """Return a text in lines that hang below its head; no word of it is left out."""
    indent = "  │ " if "│" in head else " " * len(head)
    return textwrap.wrap(
        " ".join(text.split()), width, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False
    ) or [head.rstrip()]
