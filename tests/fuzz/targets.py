"""One function per target: it takes any bytes, and raises when what is made of them breaks a promise."""

from __future__ import annotations

import asyncio
import math
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache

import msgspec
from rich.cells import cell_len

from dflash_tui.common import paths
from dflash_tui.common.errors import PatchError, UsageError
from dflash_tui.common.sanitizer import LINE_LIMIT
from dflash_tui.engines.patching import text_edits
from dflash_tui.events import LatenciesSampled, LogLine, Sampled, decode_recorded, encode
from dflash_tui.planning import patch_file
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.vllm_output import metrics as vllm_output_metrics
from dflash_tui.vllm_output.log_reader import LogReader
from tests import DATA
from tests.fuzz import answers, records
from tests.fuzz.promises import assert_finite, assert_folds, assert_is_error, scratch_folder
from tests.support import expositions, recordings, scrapes
from tests.unit.planning.recipes.test_recipe_fuzz import every_plan, is_sound

CORPUS = DATA / "fuzz"
_STARTED = 1_795_224_240.0


def log(data: bytes) -> None:
    """Bytes of a log: the same events however they are cut, each plain and at a time, and a state of them."""
    whole = LogReader(_STARTED, 0.0).feed(data + b"\n")
    cut = zlib.crc32(data) % (len(data) + 1)
    reader = LogReader(_STARTED, 0.0)
    assert [*reader.feed(data[:cut]), *reader.feed(data[cut:] + b"\n")] == whole, cut
    assert_folds(whole)
    for event in whole:
        assert not isinstance(event, LogLine) or len(event.text) <= LINE_LIMIT


def metrics(data: bytes) -> None:
    """A body of /metrics, of which the first half was there a second before: finite figures, or none.

    Its lines hold what prometheus_client sees in them, and it may come in any two pieces.
    """
    for line in data.split(b"\n"):
        expositions.assert_agreement(line.decode(errors="replace")[:2000])
    lines = data.decode(errors="replace").split("\n")
    cut, reader = zlib.crc32(data) % (len(data) + 1), vllm_output_metrics.MetricsReader()
    reader.feed(data[:cut])
    reader.feed(data[cut:])
    assert reader.result() == scrapes.parse_metrics("\n".join(lines)), cut
    before, after = (scrapes.parse_metrics("\n".join(part)) for part in (lines[: len(lines) // 2], lines))
    if not after:
        return
    told: list[Sampled | LatenciesSampled] = [
        Sampled(_STARTED + 1, after.counters),
        LatenciesSampled(_STARTED + 1, after.ttft, after.tpot),
    ]
    if before:
        vllm_output_metrics.compute_rates(before.counters, after.counters, 1.0)
        told.insert(0, Sampled(_STARTED, before.counters))
    assert_finite(msgspec.to_builtins(after))
    assert_folds(told)
    for event in told:
        assert decode_recorded(encode(event)) == event


def recipe(data: bytes) -> None:
    """A recipe's file: every plan of it is sound, or one error names the file."""
    path = scratch_folder() / "demo-cpu.yaml"
    path.write_bytes(data)
    try:
        found = recipe_loader.load_recipe(path)
    except UsageError as error:
        assert_is_error(str(error), f"{path}:")
        return
    for plan in every_plan(found):
        is_sound(plan)


def patch(data: bytes) -> None:
    """A patch's file: it names files inside of vLLM and edits a text or refuses to, or one error says why not."""
    path = scratch_folder() / "mine.yaml"
    path.write_bytes(data)
    patch_file._read.cache_clear()  # by the time of the change, which passes in steps
    try:
        found = patch_file._read(path, 0)
    except UsageError as error:
        assert_is_error(str(error), f"{path}:")
        return
    for name in found.paths:
        assert name.endswith(".py"), name
        assert not name.startswith("/"), name
        assert ".." not in name.split("/"), name
    texts = {file.path: "\n".join(edit.old for edit in file.edits) for file in found.files}
    text_edits.fit_edits(found, texts)
    try:
        text_edits.patch_texts([found], texts)
    except PatchError as error:
        assert_is_error(str(error))


_SPANS = (0.0, 1.0, 120.0, 3600.0, 86_400.0, 1e9)
_TOPS = (None, 0.0, 1e-300, 1e-3, 5.0, 1e12, 1e308)
_ODD = (
    math.nan,
    math.inf,
    -math.inf,
    1e12,
    -1e12,
    1e308,
    -1e308,
    0.0,
    -0.0,
    1e-300,
    5e-324,
    5.0,
    60.0,
    1e15,
    1e-9,
    1.0,
)


def chart(data: bytes) -> None:
    """Lines of any values on axes of any size: they are drawn, and the process lives."""
    if len(data) < 8:
        return
    width, height, span, top, cuts, fixed, labels, _ = data[:8]
    values = list(_values(data[8:]))
    step = max(1, len(values) // (1 + cuts % 3))
    lines = [values[at : at + step] for at in range(0, len(values), step)]
    loop, charts, line_of, _ = _host()
    drawn = charts[fixed % 2]

    async def draw() -> None:
        named = [line_of(line, "primary", str(place)) for place, line in enumerate(lines)]
        axis = [str(number) for number in range(labels % 40)]
        drawn.show(named, _SPANS[span % len(_SPANS)], _TOPS[top % len(_TOPS)], axis)
        assert all(cell_len(row) <= width for row in drawn.draw(width, height).plain.splitlines())

    loop.run_until_complete(draw())


def _values(data: bytes) -> Iterator[float]:
    """Yield numbers: a byte stands for an odd one or for itself, and 255 for the eight that follow."""
    place = 0
    while place < len(data):
        first = data[place]
        if first == 255 and len(data) - place > 8:
            yield struct.unpack_from("<d", data, place + 1)[0]
            place += 8
        else:
            yield _ODD[first] if first < len(_ODD) else float(first)
        place += 1


@cache
def _host():
    """Return a loop, two charts of an app that runs in it, what makes a line of them, and what keeps the app alive."""
    from textual.app import App, ComposeResult

    from dflash_tui.tui.widgets.chart import Chart, ChartLine

    class Host(App[None]):
        def compose(self) -> ComposeResult:
            yield Chart("x", top=10, id="free")
            yield Chart("y", top=5, fixed=True, id="fixed")

    loop, app = asyncio.new_event_loop(), Host()
    running = app.run_test(size=(80, 24))
    loop.run_until_complete(running.__aenter__())
    return loop, list(app.query(Chart)), ChartLine, running


def seeds(target: str) -> Iterator[bytes]:
    """Yield what a fuzzer begins with: real logs, answers and files, the large ones in pieces."""
    match target:
        case "log":
            for name in recordings.names():
                raw = recordings.raw(name)
                yield from (raw[:4000], raw[-4000:])
        case "metrics":
            prefixes = vllm_output_metrics.LINE_PREFIXES
            for name in ("cpu-vllm-0.32.0/dflash", "h200-vllm-0.26.0/g26-dflash-compile"):
                told = recordings.metrics(name, "end").splitlines(keepends=True)
                yield "".join(line for line in told if line.encode().startswith(prefixes)).encode()
        case "recipe" | "patch":
            kind = "recipes" if target == "recipe" else "patches"
            yield from (path.read_bytes() for path in paths.bundled_folder(kind).glob("*.yaml"))
        case "chart":
            yield bytes([80, 24, 2, 4, 2, 0, 0, 0, *range(255)])
            yield bytes([60, 12, 3, 5, 0, 1, 9, 0, *range(16), 255]) + struct.pack("<d", -1.5)
        case _:
            yield from _SEEDS[target]()


_SEEDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "recording": records.recording_seeds, "archive": records.archive_seeds, "run": records.run_seeds,
    "sse": answers.stream_seeds,
}  # fmt: skip
TARGETS: dict[str, Callable[[bytes], None]] = {
    "log": log, "metrics": metrics, "recipe": recipe, "patch": patch, "chart": chart,
    "recording": records.recorded_folder, "archive": records.archive, "run": records.run,
    "sse": answers.stream,
}  # fmt: skip
