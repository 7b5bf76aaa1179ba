"""The explanation that `why` gives of a server, from any source: its cause or alarms, and their text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import msgspec

from dflash_tui.diagnosis.cause import Confidence, shorten_frame
from dflash_tui.events import Phase
from dflash_tui.run_state.alarms import Alarm
from dflash_tui.run_state.state import RunState

NO_FAILURE = "none"


class Explanation(msgspec.Struct, frozen=True):
    """Why a server failed or is slow. Programs read it, so no field is ever renamed or removed."""

    kind: str
    """The name of the cause; `unknown` if there is none, `none` if nothing is wrong."""
    cause: str
    evidence: tuple[str, ...] = ()
    """The lines that show the cause, in full, the best first."""
    fix: tuple[str, ...] = ()
    """Steps to take, of one or two sentences each, the best first."""
    confidence: Confidence = "certain"
    phase: str = ""
    """The phase in which the log ends: `up` for a server that served, empty if unknown."""
    versions: dict[str, str] = {}
    """The versions that the log names, by package, such as `vllm`."""
    figures: dict[str, float] = {}
    """Seconds of engine initialisation and of compiling, acceptance length and rate, tok/s and requests."""
    backends: dict[str, str] = {}
    """The backends that the log names, for `attention`, `moe` and `gemm`."""
    warnings: tuple[str, ...] = ()
    """Other reasons why the server is slower than intended, with what to do."""
    process: str = ""
    """The process of the server that failed first, by vLLM's name; empty if the log does not say."""
    link: str = ""
    """A page with more about the cause."""
    notes: tuple[str, ...] = ()
    """Parts of the log that were left out, and what else can be read."""
    slow: bool = False
    """Whether the server runs or ran, and the cause makes it slow or its answers wrong."""


def explain_alarms(alarms: Sequence[Alarm], state: RunState, well: str) -> Explanation:
    """Return the alarms of a server that did not fail, the worst first; without any, the cause is `well`."""
    phase = name_phase(state)
    if not alarms:
        return Explanation(NO_FAILURE, well, phase=phase)
    worst, *others = alarms
    found = Explanation(worst.kind, worst.what, (worst.evidence,), (worst.hint,), phase=phase, slow=True)
    return msgspec.structs.replace(found, warnings=tuple(map(str, others)))


def name_phase(state: RunState) -> str:
    """Return the phase in which a log ends; empty if it names none, as in a partial log."""
    phase = Phase.UP if state.up_at is not None else state.startup.phase
    return "" if phase in {None, Phase.IMPORT} else str(phase)


_NARROWEST = 40
_BACKENDS = {"moe": "MoE", "gemm": "GEMM"}
_SURE = {"certain": "certain", "likely": "likely; the message can have other causes", "guess": "a guess"}


def format_explanation(explanation: Explanation, width: int) -> str:
    """Return cause, fix, full evidence and confidence, in lines of at most `width` cells."""
    return "\n".join(_list_lines(explanation, max(_NARROWEST, width)))


def _list_lines(explanation: Explanation, width: int) -> Iterator[str]:
    sign = "✓" if explanation.kind == NO_FAILURE else "!" if explanation.slow else "✗"
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


def _list_facts(explanation: Explanation) -> Iterator[str]:
    yield f"{_SURE[explanation.confidence]} ({explanation.kind})"
    if explanation.phase:
        yield "while serving" if explanation.phase == "up" else f"in the phase {explanation.phase}"
    if explanation.process:
        yield f"in {explanation.process}"
    if "engine_init_s" in explanation.figures:
        yield f"engine in {explanation.figures['engine_init_s']:.0f} s"
    if "acceptance_length" in explanation.figures:
        yield f"acceptance length {explanation.figures['acceptance_length']:.2f}"
    if "tok_s" in explanation.figures:
        yield f"{explanation.figures['tok_s']:.1f} tok/s"
    yield from (f"{name} {version}" for name, version in explanation.versions.items())
    yield from (f"{_BACKENDS.get(name, name)} {backend}" for name, backend in explanation.backends.items())


def _wrap(head: str, text: str, width: int) -> list[str]:
    indent = "  │ " if "│" in head else " " * len(head)
    return textwrap.wrap(
        " ".join(text.split()), width, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False
    ) or [head.rstrip()]
