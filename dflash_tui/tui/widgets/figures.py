"""The figures of a running server: tiles, recent requests, acceptance per position, measured requests."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from textual.app import ComposeResult, RenderResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Digits, Static

from dflash_tui.common.formatting import (
    UNKNOWN,
    draw_bar,
    format_duration,
    format_gib,
    format_number,
    format_percent,
    pluralize,
    truncate,
    truncate_middle,
)
from dflash_tui.events import OURS, Histogram, RequestDone, SpeculationLogged
from dflash_tui.planning.plan import Plan
from dflash_tui.run_state.finished_requests import FinishedRequest, SlowCycle
from dflash_tui.run_state.series import MAX_GAP, CounterReading
from dflash_tui.run_state.speculation import (
    DraftAdvice,
    choose_published_figures,
    compare_with_published,
    list_published_ranges,
)
from dflash_tui.run_state.state import RunState
from dflash_tui.tui.widgets.basic import MUTED
from dflash_tui.vllm_output.metrics import Quantile, Rates, estimate_quantile

RECENT = 10.0
NEWEST = 5
"""The number of newest requests whose median is the displayed speed."""
_LEAST_FOR_PERCENTILES = 20
_LEAST_COLUMNS = 18
_TIGHT = 4  # cells that a row may lack before a tile is dropped
_LOGGED_OFTEN = 20.0  # seconds; vLLM logs speculation metrics every 10 s while it generates
_UNTOLD = "–"  # for a bucket that starts at zero


class Tile(NamedTuple):
    """One figure above the charts."""

    name: str
    """The tile's label; no two labels begin with the same word."""
    value: str
    """The figure with its unit, or a dash."""
    note: str = ""
    """Text shown beside the value if there is room."""
    short: str = ""
    """The label when label and value share one line."""
    columns: int = 16
    """The tile's width in a row of 80 columns."""
    good: bool = True
    """False if the figure is bad and is drawn as an error."""
    order: int = 0
    """On narrow terminals the tiles of the highest order are dropped first, those of order 0 never."""
    dim: bool = False
    """Whether the figure is old or belongs to another set-up."""

    @property
    def style(self) -> str:
        """The Textual style of the figure."""
        return "bold $error" if not self.good else MUTED if self.dim else "bold"


def build_speed(state: RunState, now: float) -> Tile:
    """Return the median decode speed of the newest requests; dimmed, with its age, when idle."""
    newest = [request for request in state.finished.requests if request.tok_s and not request.failed][-NEWEST:]
    if not newest:
        return Tile("decode tok/s", UNKNOWN, "no request yet", "decode tok/s", 17)
    value = format_number(statistics.median(request.tok_s or 0.0 for request in newest))
    age, last = max(0.0, now - newest[-1].at), state.readings.latest(now, MAX_GAP)
    if age <= RECENT or (state.exit is None and last and last.counters.running):
        return Tile("decode tok/s", value, f"median of {len(newest)}", "decode tok/s", 19)
    ago = f"{format_duration(age)} ago"
    return Tile("decode tok/s", value, ago, f"tok/s {ago}", 10 + len(ago) + len(value), dim=True)


def build_tiles(state: RunState, plan: Plan | None, tokens: int, now: float, span: float) -> list[list[Tile]]:
    """Return two rows of tiles over the last ten seconds, falling back to the window.

    `tokens` is the number of drafted tokens per step, `span` the window in seconds. A silent server has no current
    figures.
    """
    last = state.readings.latest(now, MAX_GAP) if state.exit is None else None
    recent = state.readings.window(RECENT, now) if last else None
    window = state.readings.mean(span, now)
    minutes = f"in {span / 60:.0f} min"

    def rate(tile: Tile, text: Callable[[Rates], str]) -> Tile:
        for rates, note in ((recent, tile.note), (window, minutes)):
            if rates and (value := text(rates)) != UNKNOWN:
                return tile._replace(value=value, note=note, dim=rates is not recent)
        return tile._replace(note="")

    most = f"of {tokens + 1}" if tokens else ""
    mean = f"{format_number(window.tok_s)} {minutes}" if window else ""
    speculation = (
        rate(Tile("accept length", UNKNOWN, most, "AL", 9), lambda rates: format_number(rates.acceptance_length, 2)),
        rate(
            Tile("acceptance", UNKNOWN, "", "acceptance", 18, order=1),
            lambda rates: format_percent(rates.acceptance, 1),
        ),
    )
    if recent is None and window is None and (logged := state.logged_speculation):
        speculation = _build_logged(logged, most, now)
    published = _build_published(state, plan, window)
    prefix = format_percent(window.prefix_hit if window else None, 1)
    return [
        [
            rate(Tile("total tok/s", UNKNOWN, mean, "total", 13), lambda rates: format_number(rates.tok_s)),
            *speculation,
            rate(Tile("steps/s", UNKNOWN, "", "steps/s", 15, order=2), lambda rates: format_number(rates.steps_s)),
            *([published] if published else []),
        ],
        [
            _build_latency("TTFT", 18, _list_measured(state, span, now), state.ttft(span, now)),
            _build_latency("TPOT", 17, _list_measured(state, span, now, decoding=True), state.tpot(span, now), order=1),
            _build_queue(last, window),
            _build_memory(state, now),
            *([Tile("prefix hits", prefix, minutes, "prefix", 14, order=2)] if prefix != UNKNOWN else []),
        ],
    ]


def _build_logged(logged: SpeculationLogged, most: str, now: float) -> tuple[Tile, Tile]:
    """Return tiles from vLLM's log (ten-second averages), used when /metrics has no speculation counters."""
    age = max(0.0, now - logged.at)
    source = "by the log" if age < _LOGGED_OFTEN else f"by the log, {format_duration(age)} ago"
    share = logged.accepted / logged.drafted if logged.drafted else None
    return (
        Tile("accept length", format_number(logged.acceptance_length, 2), f"{most}, {source}", "AL log", 14),
        Tile("acceptance", format_percent(share, 1), source, "acc. log", 17),
    )


def _build_queue(last: CounterReading | None, window: Rates | None) -> Tile:
    if last is None:
        return Tile("run/wait/preempt", UNKNOWN, "", "queue", 13)
    preempted = format_number(window.preemptions if window else None, 0)
    running, waiting = (format_number(n, 0) for n in (last.counters.running, last.counters.waiting))
    counts = f"{running}/{waiting}/{preempted}"
    return Tile("run/wait/preempt", counts, "", "queue", 13, good=not window or (window.preemptions or 0.0) < 1)


def _build_memory(state: RunState, now: float) -> Tile:
    memory = state.memory.latest(now, MAX_GAP) if state.exit is None else None
    if memory is None:
        return Tile("memory", UNKNOWN, "", "memory", 17)
    share = format_percent(memory.used / memory.total) if memory.total else ""
    return Tile(f"memory {memory.source}", format_gib(memory.used), share, "memory", 17)


def _build_published(state: RunState, plan: Plan | None, window: Rates | None) -> Tile | None:
    """Return the comparison with the nearest published figures: the first outside its range, else the speed.

    Figures of another set-up are shown with its name and are not compared.
    """
    if plan is None or plan.synthetic:
        return None
    speculative = plan.num_speculative_tokens > 0
    band = choose_published_figures(plan.expected, speculative=speculative)
    if band is None:
        return None
    comparisons = compare_with_published(band, window, state.finished.requests, speculative=speculative)
    if band.set_up or not comparisons:
        name, bounds = list_published_ranges(band, speculative=speculative)[0]
        of = band.set_up.replace(" profile", "")  # fits into 23 cells
        value = f"{_format_bounds(name, *bounds)} {of}".rstrip()
        return Tile("published", value, name, "band", 23, order=1, dim=bool(band.set_up))
    reading = next((reading for reading in comparisons if reading.position != "within"), comparisons[0])
    value = f"{reading.position} {_format_bounds(reading.name, reading.low, reading.high)}"
    return Tile("published", value, reading.name, "band", 23, good=reading.position != "below", order=1)


def _format_bounds(name: str, low: float, high: float) -> str:
    first, last = (format_percent(bound) if name == "acceptance" else f"{bound:g}" for bound in (low, high))
    return first if first == last else f"{first} to {last}"


def _list_measured(state: RunState, span: float, now: float, *, decoding: bool = False) -> list[float]:
    """Return TTFT, or TPOT if `decoding`, of the measured requests in the window, in seconds."""
    done = [done for done in state.requests if done.kind not in OURS and now - span < done.at <= now]
    times = [1 / each.decode_tok_s if each.decode_tok_s else None for each in done] if decoding else [
        each.ttft for each in done
    ]  # fmt: skip
    return [seconds for seconds in times if seconds is not None]


def _build_latency(name: str, columns: int, measured: list[float], histogram: Histogram | None, order: int = 0) -> Tile:
    """Return the median and p95 (the maximum below 20 requests) of the requests in the window.

    Uses this client's timings, or the server's histogram if most requests came from other clients.
    """
    counted = round(sum(histogram.counts)) if histogram else 0
    exact = len(measured) * 2 >= counted and len(measured) > 0
    count = len(measured) if exact else counted
    high = "p95" if count >= _LEAST_FOR_PERCENTILES else "max"
    if not count or not (exact or histogram):
        return Tile(f"{name} median/max", UNKNOWN, "", name, columns, order=order)
    note = pluralize(count, "request")
    share = 0.95 if high == "p95" else 1.0
    if exact or histogram is None:
        ordered = sorted(measured)
        both = [_format_seconds(x) for x in (statistics.median(ordered), ordered[math.ceil(share * count) - 1])]
    else:
        both = [_format_bucket(estimate_quantile(histogram, 0.5)), _format_bucket(estimate_quantile(histogram, share))]
        if _UNTOLD in {text for text, _ in both}:
            note = f"mean {' '.join(_format_seconds(histogram.total / count))}"
    (low_text, unit), (high_text, same) = both
    joined = f"{low_text}/{high_text} {same}" if unit in {same, ""} else f"{low_text} {unit}/{high_text} {same}"
    return Tile(f"{name} median/{high}", joined.rstrip(), note, name, columns, order=order)


def _format_bucket(value: Quantile | None) -> tuple[str, str]:
    """Return a quantile as `85`, `ms` or `1.2`, `s`: `>` above the last bucket, a dash in the first."""
    if value is None or value.low == 0:
        return _UNTOLD, ""
    text, unit = _format_seconds(value.low if value.high is None else value.value)
    return (f">{text}" if value.high is None else text), unit


def _format_seconds(seconds: float) -> tuple[str, str]:
    if seconds >= 0.9995:
        return f"{seconds:.1f}", "s"
    return f"{seconds * 1000:.{1 if seconds < 0.01 else 0}f}", "ms"


class Figures(Horizontal):
    """The speed of the newest requests in large digits, with the other figures beside it."""

    def __init__(self) -> None:
        super().__init__(id="figures")

    def compose(self) -> ComposeResult:
        with Vertical(id="speed"):
            yield Digits()
            yield Static(markup=False)
        yield Tiles()

    def show(self, speed: Tile, rows: Sequence[Sequence[Tile]]) -> None:
        """Replace the figures."""
        digits = self.query_one(Digits)
        digits.update("-" if speed.value == UNKNOWN else speed.value)
        digits.set_class(speed.dim, "-held")
        self.query_one("#speed Static", Static).update(Content.assemble((f"{speed.name} · {speed.note}", MUTED)))
        tiles = self.query_one(Tiles)
        tiles.speed, tiles.rows = speed, rows


class Tiles(Widget):
    """Two rows of tiles in equal columns, so that nothing moves when a number grows.

    Each row takes two lines, labels above values. If the widget is two lines high, label and value share a line and the
    speed comes first.
    """

    rows: reactive[Sequence[Sequence[Tile]]] = reactive(())
    speed: reactive[Tile | None] = reactive(None)

    def __init__(self) -> None:
        super().__init__(id="tiles")

    def render(self) -> RenderResult:
        compact = self.size.height < 2 * len(self.rows)
        lines: list[Content] = []
        shown = [list(row) for row in self.rows]
        if compact and self.speed and shown:
            shown[0].insert(0, self.speed)
        rows = [hide_tiles(row, self.size.width, compact=compact) for row in shown]
        columns = max(map(len, rows), default=0)
        for row in rows:
            widths = _compute_widths([tile.columns for tile in row] if compact else [1] * columns, self.size.width)
            placed = list(zip(row, widths, strict=False))
            if compact:
                lines.append(Content("").join([_render_short(tile, width) for tile, width in placed]))
                continue
            lines.append(Content.assemble(*((truncate(tile.name, w - 1).ljust(w), MUTED) for tile, w in placed)))
            lines.append(Content("").join([_render_value(tile, width) for tile, width in placed]))
        return Content("\n").join(lines)


def hide_tiles(row: Sequence[Tile], width: int, *, compact: bool) -> list[Tile]:
    """Return the tiles that fit in a row, dropping those of the highest order first."""
    tiles = list(row)

    def is_too_wide() -> bool:
        needed = sum(tile.columns for tile in tiles) - _TIGHT if compact else _LEAST_COLUMNS * len(tiles)
        return needed > max(width, 1)

    while is_too_wide() and any(tile.order for tile in tiles):
        tiles.remove(max(tiles, key=lambda tile: tile.order))
    return tiles


def _compute_widths(shares: Sequence[int], width: int) -> list[int]:
    ends = [width * end // max(1, sum(shares)) for end in accumulate(shares)]
    return [end - start for start, end in pairwise([0, *ends])]


def _render_value(tile: Tile, width: int) -> Content:
    note = tile.note if len(tile.value) + len(tile.note) + 2 <= width else ""
    value = truncate(tile.value, width - 1)
    return Content.assemble((value, tile.style), (f" {note}".ljust(width - len(value)), MUTED))


def _render_short(tile: Tile, width: int) -> Content:
    name = truncate(tile.short or tile.name, width - 1)
    value = truncate(tile.value, max(0, width - len(name) - 2))
    padding = " " * max(0, width - len(name) - len(value) - 1)
    return Content.assemble((f"{name} ", MUTED), (value, tile.style), padding)


_BLOCKS = "▁▂▃▄▅▆▇█"
_NAME, _VALUE = 8, 8
_LEAST_TO_VARY, _LEAST_VARIATION = 3, 0.1
# Label, field, digits and colour of each row; the most important first, in case only one fits.
_ROWS = (("tok/s", "tok_s", 1, "$series-a"), ("AL", "acceptance_length", 2, "$series-b"),
         ("steps/s", "steps_s", 1, "$series-c"))  # fmt: skip


class RequestStrip(Widget):
    """One bar row each for tok/s, AL and steps/s if they vary: newest request on the right, then its value.

    Hidden if nothing varies. If the newest request has no value, the latest known value is shown, muted.
    """

    def __init__(self) -> None:
        super().__init__(id="strip")
        self.requests: Sequence[FinishedRequest] = ()
        self.rows: list[tuple[str, str, int, str]] = []

    def show(self, requests: Sequence[FinishedRequest], cycle: SlowCycle | None) -> None:
        """Replace the requests, oldest first, and the slow cycle found in them."""
        self.requests = requests
        self.rows = [row for row in _ROWS if cycle or _varies([getattr(request, row[1]) for request in requests])]
        self.set_class(not self.rows, "-flat")
        self.styles.height = 1 + len(self.rows[: 2 if self.screen.has_class("-short") else 3])
        self.set_class(cycle is not None, "-cycle")
        title = f"requests  {len(requests)} finished, newest on the right"
        if cycle:
            title = f"! requests  every {cycle.period}: {cycle.period - cycle.slow} fast, {cycle.slow} slow"
            title += f"; {cycle.cause.replace('both', 'AL and steps/s')} drop" if cycle.cause else ""
        self.border_title = truncate(title, max(20, self.size.width - 4)) if self.size.width else title
        self.refresh()

    def render(self) -> RenderResult:
        width, height = self.size
        visible = self.requests[-max(1, width - _NAME - _VALUE) :]
        return Content("\n").join([_render_row(*row, visible) for row in self.rows[: max(1, height)]])


def _varies(values: Sequence[float | None]) -> bool:
    """Return True if most values are known and their 10th to 90th percentile range exceeds a tenth of the median."""
    known = sorted(value for value in values if value is not None)
    if len(known) < _LEAST_TO_VARY or len(known) * 2 < len(values):
        return False
    tenth = len(known) // 10
    return known[-1 - tenth] - known[tenth] > _LEAST_VARIATION * statistics.median(known)


def _render_row(name: str, figure: str, digits: int, color: str, requests: Sequence[FinishedRequest]) -> Content:
    values: list[float | None] = [getattr(request, figure) for request in requests]
    numbers = [value for value in values if value is not None]
    top = max(numbers, default=0.0)
    cells = "".join(
        "✗" if request.failed else _draw_cell(value, top) for request, value in zip(requests, values, strict=True)
    )
    value, style = values[-1], ""
    if value is None and numbers and not requests[-1].failed:
        value, style = numbers[-1], MUTED
    return Content.assemble((f"{name:<{_NAME}}", MUTED), (cells, color), (f" {format_number(value, digits)}", style))


def _draw_cell(value: float | None, top: float) -> str:
    """Return a block of proportional height; a dot if the value is unknown."""
    if value is None or top <= 0:
        return "·"
    return _BLOCKS[min(len(_BLOCKS) - 1, int(value / top * len(_BLOCKS)))]


# More than fit on any screen; drawing all would cost more with every request.
REQUESTS_SHOWN = 60
# The widths from which the requests table has a column for tokens and one for how each ended.
_TOKENS_FROM, _END_FROM = 31, 37
# The cells of a position's number and share, and those of a border beside its title.
_LEAST_POSITION, _TITLE_EDGES = 8, 2


class Positions(Widget):
    """The acceptance rate of each draft position, in as many columns as the height requires.

    The first position that does not pay off is marked; later ones are muted.
    """

    shares: reactive[tuple[float | None, ...]] = reactive(())
    advice: reactive[DraftAdvice | None] = reactive(None)

    def __init__(self) -> None:
        super().__init__(id="positions")

    def show(self, shares: Sequence[float | None], advice: DraftAdvice | None) -> None:
        """Replace the rates, rounded to whole per cent, and the advice on `n`."""
        self.shares, self.advice = tuple(None if share is None else round(share, 2) for share in shares), advice

    def watch_advice(self) -> None:
        """Update the title with the advice."""
        self._write_title()

    def on_resize(self) -> None:
        self._write_title()

    def _write_title(self) -> None:
        title = f"accepted per position{_format_advice(self.advice)}"
        if len(title) + _TITLE_EDGES > self.outer_size.width:
            title = title.replace(" per position", "")
        self.border_title = Content(title)

    def render(self) -> RenderResult:
        width, height = self.size
        if not self.shares or height < 1:
            return Content("no steps in this window" if height > 0 else "")
        columns = min(-(-len(self.shares) // height), max(1, (width + 1) // _LEAST_POSITION))
        row_count = min(height, -(-len(self.shares) // columns))
        column_width = (width + 1) // columns
        useless = self.advice.first_useless if self.advice else None
        rows = [Content("") for _ in range(row_count)]
        hidden = len(self.shares) > columns * row_count
        for index, share in enumerate(self.shares[: columns * row_count - hidden]):
            room = max(0, column_width - 9)
            gap = " " if index >= row_count and column_width > _LEAST_POSITION else ""
            drawn = draw_bar(share or 0.0, room)
            mark = "✗" if index + 1 == useless else " "
            color = "$series-b" if useless is None or index + 1 < useless else "$foreground 40%"
            rows[index % row_count] += Content.assemble(
                (f"{gap}{mark}", "$error"),
                (f"{index + 1:>2} ", MUTED),
                (drawn, color),
                f"{format_number(None if share is None else share * 100, 0):>{room - len(drawn) + 4}}",
            )
        if hidden:
            rows[-1] += Content.assemble(("  …", MUTED))
        return Content("\n").join(rows)


def _format_advice(advice: DraftAdvice | None) -> str:
    if advice is None:
        return " %"
    return ": all useful" if advice.first_useless is None else f": try n={advice.suggested}"


class Requests(Widget):
    """The last measured requests, one per row, and the one being sent; `none` is shown if there are none."""

    requests: reactive[Sequence[RequestDone]] = reactive(())
    sending: reactive[str] = reactive("")

    def __init__(self, none: Content | None = None) -> None:
        super().__init__(id="requests")
        self.border_title = "requests"
        key = "bold $primary"
        hint = Content.assemble(("none yet; ", MUTED), ("b", key), (" sends five prompts, ", MUTED), ("4", key))
        hint += Content.assemble((" chats, ", MUTED), ("y", key), (" copies a curl", MUTED))
        self.none = none or hint

    def show(self, requests: Sequence[RequestDone], sending: str) -> None:
        """Replace the requests; `sending` is the name of the prompt being sent, or ""."""
        self.requests, self.sending = requests, sending

    def render(self) -> RenderResult:
        width, height = self.size
        tokens, end = f" {'tokens':>6}" * (width >= _TOKENS_FROM), "  end" * (width >= _END_FROM)
        header = Content.assemble((f"{'':9} {'TTFT':>7} {'tok/s':>6}{tokens}{end}", MUTED))
        rows = [_render_request(done, width) for done in self.requests]
        if self.sending:
            rows.append(Content.assemble((f"{self.sending:<9}", "bold"), ("  sending …", MUTED)))
        if not rows:
            rows = [self.none]
        return Content("\n").join([header, *rows[-max(1, height - 1) :]])


def _render_request(done: RequestDone, width: int) -> Content:
    kind = f"{truncate_middle(done.kind, 9):<9}"
    if done.error:
        return Content.assemble((kind, "bold"), (truncate(f" ✗ {done.error}", width - 9), "$error"))
    ttft = UNKNOWN if done.ttft is None else format_number(done.ttft, 2, "s")
    tokens = f" {done.tokens:>6}" * (width >= _TOKENS_FROM)
    figures = f" {ttft:>7} {format_number(done.decode_tok_s):>6}{tokens}  "
    return Content.assemble((kind, "bold"), figures, (truncate(done.finish, max(0, width - _END_FROM + 4)), MUTED))
