"""`history`: how long starts took on this machine, eager against compile, cold against cached."""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from dflash_tui import text
from dflash_tui.commands import note, out
from dflash_tui.core import history, server
from dflash_tui.core.events import Phase
from dflash_tui.core.expected import Start
from dflash_tui.errors import UsageError

_Group = tuple[str, str, str, str, str]  # recipe, setup, engine, mode, cache
_PARTS: tuple[tuple[str, tuple[Phase, ...]], ...] = (
    ("BEFORE", (Phase.IMPORT, Phase.RESOLVE, Phase.ENGINE)),
    ("WEIGHTS", (Phase.WEIGHTS, Phase.DRAFTER)),
    ("COMPILE", (Phase.COMPILE,)),
    ("KERNELS", (Phase.PROFILE, Phase.KV_CACHE, Phase.AUTOTUNE, Phase.JIT)),
    ("GRAPHS", (Phase.GRAPHS,)),
    ("OTHER", (Phase.API, Phase.UNATTRIBUTED)),
)


def command(args: argparse.Namespace) -> int:
    """`history [RECIPE]`: print the starts, and their medians by mode and cache."""
    known = {run.plan.recipe for run in server.runs()}
    if args.recipe and args.recipe not in known:
        do = f"recorded: {', '.join(sorted(known))}" if known else "dflash-tui up RECIPE starts a server"
        raise UsageError(f"no start of '{args.recipe}' is recorded", do=do)
    starts = history.starts(args.recipe or "")
    if args.json:
        for start in starts:
            out(msgspec.json.encode(start).decode())
        return 0
    if not starts:
        note("no server has come up on this machine yet")
        return 0
    out(_list(starts))
    groups: dict[_Group, list[Start]] = defaultdict(list)
    for start in starts:
        groups[start.recipe, start.setup, start.engine, start.mode, start.cache].append(start)
    out("")
    out(_medians(groups))
    for line in _compared(groups):
        out(line)
    return 0


def _list(starts: Sequence[Start]) -> str:
    """Return one row per start, oldest first."""
    header = ("RUN", "WHEN", "MODE", "CACHE", "UP", "FIRST REQUEST", "READY")
    rows = [
        (
            start.run,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(start.at)),
            start.mode,
            start.cache or text.UNKNOWN,
            text.duration(start.up),
            text.number(start.first_request, 1, "s"),
            text.duration(start.ready),
        )
        for start in starts
    ]
    return text.table(header, rows, right=(4, 5, 6))


def _medians(groups: dict[_Group, list[Start]]) -> str:
    """Return one row per recipe, engine, mode and cache: medians of the parts of a start, and of how many it is."""
    header = ("MEDIANS", "SETUP", "ENGINE", "MODE", "CACHE", "N", *(name for name, _ in _PARTS), "FIRST", "READY")
    rows = []
    for (recipe, setup, engine, mode, cache), starts in sorted(groups.items()):
        parts = [text.duration(_median(starts, _seconds_of(phases))) for _, phases in _PARTS]
        first = text.number(_median(starts, lambda start: start.first_request), 1, "s")
        ready = text.duration(_median(starts, lambda start: start.ready))
        rows.append((recipe, setup, engine, mode, cache or text.UNKNOWN, str(len(starts)), *parts, first, ready))
    return text.table(header, rows, right=tuple(range(5, len(header))))


def _seconds_of(phases: Sequence[Phase]) -> Callable[[Start], float | None]:
    """Return what tells the seconds of these phases in a start, None when it had none of them."""

    def seconds(start: Start) -> float | None:
        had = [start.phases[phase] for phase in phases if phase in start.phases]
        return sum(had) if had else None

    return seconds


def _median(starts: Sequence[Start], value: Callable[[Start], float | None]) -> float | None:
    known = [number for start in starts if (number := value(start)) is not None]
    return statistics.median(known) if known else None


def _compared(groups: dict[_Group, list[Start]]) -> list[str]:
    """Return a sentence per recipe and engine that has a start to compare with its eager ones, or cold with cached."""
    said = []
    for recipe, setup, engine in sorted({group[:3] for group in groups}):
        ready = {
            (mode, cache): (median, len(starts))
            for (*of, mode, cache), starts in groups.items()
            if of == [recipe, setup, engine] and (median := _median(starts, lambda start: start.ready)) is not None
        }
        compiled = {cache: found for (mode, cache), found in ready.items() if mode == "compile"}
        pairs = [(f"compile, {cache}", found, "eager", ready[("eager", "")]) for cache, found in compiled.items()
                 if ("eager", "") in ready]  # fmt: skip
        if "cold" in compiled and "cached" in compiled:
            pairs.append(("compile, cold", compiled["cold"], "compile, cached", compiled["cached"]))
        for one, (a, n), other, (b, m) in pairs:
            more = f"{text.duration(abs(a - b))} {'longer' if a >= b else 'shorter'}"
            said.append(
                f"{recipe} ({setup}) on {engine}: {one} (n={n}) is ready {more} after its launch than {other} (n={m})"
            )
    return said
