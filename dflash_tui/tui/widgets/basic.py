"""Small displays that draw themselves from values: status line, phase bar, position bars, requests."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import RenderResult
from textual.content import Content
from textual.widget import Widget

from dflash_tui.common.formatting import UNKNOWN, format_duration, format_number, truncate
from dflash_tui.events import RequestDone
from dflash_tui.run_state.draft_advice import DraftAdvice
from dflash_tui.run_state.startup import PhaseSpan

NEEDS = (60, 18)
MUTED = "$foreground 60%"
# More than fit on any screen; all of them would cost more with every request.
REQUESTS_SHOWN = 60
_EIGHTHS = " ▏▎▍▌▋▊▉"


class Display(Widget):
    """Shows one content, on one line per row: what is too long is cut, unless the style sheet wraps it."""

    DEFAULT_CSS = "Display { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }"
    content: Content = Content("")

    def show(self, content: Content) -> None:
        """Replace the content."""
        if content != self.content:
            taller = content.plain.count("\n") != self.content.plain.count("\n")
            self.content = content
            self.refresh(layout=taller or self.styles.text_wrap == "wrap")

    def render(self) -> RenderResult:
        return self.content


class TooSmall(Widget):
    """Says that the terminal is too small; the style sheet shows it instead of everything else."""

    def render(self) -> RenderResult:
        width, height = self.app.size
        return Content(f"terminal too small: {width}x{height}, needs {NEEDS[0]}x{NEEDS[1]}")


def draw_bar(share: float, width: int) -> str:
    """Return a bar of `share` of the width, exact to an eighth of a cell."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


class Timeline(Widget):
    """The start-up folded into two rows: a bar of the phases and their names with durations; in one row the names."""

    def __init__(self) -> None:
        super().__init__(id="timeline")
        self.spans: Sequence[PhaseSpan] = ()
        self.ready: float | None = None

    def show(self, spans: Sequence[PhaseSpan], ready: float | None = None) -> None:
        """Replace the phases, and the seconds from the launch to the first answer, None while there is none."""
        if (spans, ready) != (self.spans, self.ready):
            self.spans, self.ready = spans, ready
            self.refresh()

    def render(self) -> RenderResult:
        total = sum(span.seconds for span in self.spans)
        over = bool(self.spans) and self.spans[-1].over
        label = f"up in {format_duration(total)}" if over else "starting"
        if over and self.ready is not None:
            label += f", ready in {format_duration(self.ready)}"
        low = self.size.height < 2
        room = self.size.width - len(label) - 2
        pieces = fold_phases([(span.phase.value, span.seconds) for span in self.spans], room - len(self.spans) * low)
        if low:
            return Content.assemble(label, ("  " + "  ".join(piece for piece, _ in pieces), MUTED))
        line, labels = Content(""), Content("")
        for index, (name, width) in enumerate(pieces):
            line += Content.assemble(("█" * width, "$series-a" if index % 2 == 0 else "$series-dim"))
            labels += Content.assemble((name.ljust(width), MUTED))
        return Content("\n").join([line + Content(f"  {label}"), labels])


def fold_phases(phases: Sequence[tuple[str, float]], width: int) -> list[tuple[str, int]]:
    """Return (label, cells) per phase; the shortest phases become "other" until every label has room."""
    kept, other = list(phases), 0.0
    while True:
        shown = [*kept, ("other", other)] if other or len(kept) < len(phases) else kept
        labels = [f"{name} {format_duration(seconds)}" for name, seconds in shown]
        free = width - sum(len(label) + 1 for label in labels)
        if free >= 0 or not kept:
            break
        shortest = min(kept, key=lambda phase: phase[1])
        kept.remove(shortest)
        other += shortest[1]
    total = sum(seconds for _, seconds in shown) or 1.0
    cells = [
        len(label) + 1 + int(max(0, free) * seconds / total) for label, (_, seconds) in zip(labels, shown, strict=True)
    ]
    if cells:
        cells[-1] += max(0, width - sum(cells))
    return list(zip(labels, cells, strict=True))


class Positions(Widget):
    """The share of steps in which each drafted position was accepted, in as many columns as the height asks for.

    The first useless position is marked, and those after it are muted.
    """

    def __init__(self) -> None:
        super().__init__(id="positions")
        self.border_title = "accepted per position %"
        self.shares: Sequence[float] = ()
        self.advice: DraftAdvice | None = None

    def show(self, shares: Sequence[float], advice: DraftAdvice | None) -> None:
        """Replace the shares, told in whole per cent, and what they say about how many tokens to draft."""
        shares = [round(share, 2) for share in shares]
        if (shares, advice) != (self.shares, self.advice):
            self.shares, self.advice = shares, advice
            self.border_title = Content(f"accepted per position{_advised(advice)}")
            self.refresh()

    def render(self) -> RenderResult:
        width, height = self.size
        if not self.shares or height < 1:
            return Content("no step in the window" if height > 0 else "")
        columns = -(-len(self.shares) // height)
        count = -(-len(self.shares) // columns)
        each = (width + 1) // columns
        useless = self.advice.first_useless if self.advice else None
        rows = [Content("") for _ in range(count)]
        for index, share in enumerate(self.shares):
            room = max(0, each - 9)
            gap = " " if index >= count else ""
            drawn = draw_bar(share, room)
            mark = "✗" if index + 1 == useless else " "
            color = "$series-b" if useless is None or index + 1 < useless else "$foreground 40%"
            rows[index % count] += Content.assemble(
                (f"{gap}{mark}", "$error"),
                (f"{index + 1:>2} ", MUTED),
                (drawn, color),
                f"{share * 100:>{room - len(drawn) + 4}.0f}",
            )
        return Content("\n").join(rows)


def _advised(advice: DraftAdvice | None) -> str:
    if advice is None:
        return " %"
    return ": all useful" if advice.first_useless is None else f": try n={advice.suggested}"


class Requests(Widget):
    """The last measured requests, one per row, and the one that is on its way."""

    def __init__(self) -> None:
        super().__init__(id="requests")
        self.border_title = "requests"
        self.requests: Sequence[RequestDone] = ()
        self.sending = ""
        self.hint = Content.assemble(("none yet; ", MUTED), ("b", "bold $primary"), (" sends the five prompts", MUTED))

    def show(self, requests: Sequence[RequestDone], sending: str) -> None:
        """Replace the requests; `sending` names the prompt that is on its way, or is empty."""
        if (requests, sending) != (self.requests, self.sending):
            self.requests, self.sending = requests, sending
            self.refresh()

    def render(self) -> RenderResult:
        width, height = self.size
        header = Content.assemble((f"{'':9} {'TTFT':>7} {'tok/s':>7} {'tokens':>6}  end", MUTED))
        rows = [_request(done, width) for done in self.requests]
        if self.sending:
            rows.append(Content.assemble((f"{self.sending:<9}", "bold"), ("  on its way …", MUTED)))
        if not rows:
            rows = [self.hint]
        return Content("\n").join([header, *rows[-max(1, height - 1) :]])


def _request(done: RequestDone, width: int) -> Content:
    if done.error:
        return Content.assemble((f"{done.kind:<9}", "bold"), (truncate(f" ✗ {done.error}", width - 9), "$error"))
    ttft = UNKNOWN if done.ttft is None else format_number(done.ttft, 2, "s")
    figures = f" {ttft:>7} {format_number(done.decode_tok_s):>7} {done.tokens:>6}  "
    return Content.assemble((f"{done.kind:<9}", "bold"), figures, (truncate(done.finish, width - 34), MUTED))
