"""The request strip: one cell per finished request, so that periodically slow requests are visible."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import RenderResult
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from dflash_tui.common.formatting import format_number, truncate
from dflash_tui.run_state.finished_requests import FinishedRequest, SlowCycle
from dflash_tui.tui.widgets.basic import MUTED

_BLOCKS = "▁▂▃▄▅▆▇█"
_NAME, _VALUE = 8, 8
# Name, field, digits and colour of each row; the most important first, since there may be room for one only.
_ROWS = (("tok/s", "tok_s", 1, "$series-a"), ("AL", "acceptance_length", 2, "$series-b"),
         ("steps/s", "steps_s", 1, "$series-c"))  # fmt: skip


class RequestStrip(Widget):
    """A row of cells for each of tok/s, AL and steps/s, the newest request at the right, then its value.

    If the newest request has no value, that of the newest one with a value is shown, muted.
    """

    requests: reactive[Sequence[FinishedRequest]] = reactive(())
    cycle: reactive[SlowCycle | None] = reactive(None)

    def __init__(self) -> None:
        super().__init__(id="strip")

    can_send: reactive[bool] = reactive(False)
    """Whether there is a server that can be asked."""

    def show(self, requests: Sequence[FinishedRequest], cycle: SlowCycle | None, *, can_send: bool = False) -> None:
        """Replace the requests, oldest first, the cycle that they show, and whether the server can be asked."""
        self.requests, self.cycle, self.can_send = requests, cycle, can_send

    def watch_requests(self, requests: Sequence[FinishedRequest]) -> None:
        """Show one row only where the steps of single requests are not recorded, as rows of dots say nothing."""
        self.set_class(bool(requests) and not any(request.acceptance_length for request in requests), "-bare")
        self._set_title()

    def watch_cycle(self) -> None:
        self._set_title()

    def _set_title(self) -> None:
        title = f"requests  {len(self.requests)} finished, newest on the right" if self.requests else "requests"
        if self.cycle:
            fast = self.cycle.period - self.cycle.slow
            title = (
                f"! requests  every {self.cycle.period}: {fast} fast, {self.cycle.slow} slow{_format_cause(self.cycle)}"
            )
        self.border_title = truncate(title, max(20, self.size.width - 4)) if self.size.width else title
        self.set_class(self.cycle is not None, "-cycle")

    def on_resize(self) -> None:
        self._set_title()

    def render(self) -> RenderResult:
        width, height = self.size
        if not self.requests:
            return self._render_hint(width)
        room = max(1, width - _NAME - _VALUE)
        visible = self.requests[-room:]
        rows = _ROWS[:1] if self.has_class("-bare") else _ROWS
        return Content("\n").join([_row(*row, visible) for row in rows[: max(1, height)]])

    def _render_hint(self, width: int) -> Content:
        """Return what to do where nothing was asked yet, in the middle."""
        if not self.can_send:
            return Content.assemble(("one cell per finished request; none yet", MUTED))
        keys = ((" b ", "bold reverse $primary"), " to measure: five prompts", ("    y ", "bold $primary"))
        line = Content.assemble("press", *keys, ("copies a curl", MUTED))
        return Content(" " * max(0, (width - line.cell_length) // 2)) + line


def _format_cause(cycle: SlowCycle) -> str:
    return f"; {cycle.cause.replace('both', 'AL and steps/s')} drop" if cycle.cause else ""


def _row(name: str, figure: str, digits: int, color: str, requests: Sequence[FinishedRequest]) -> Content:
    values: list[float | None] = [getattr(request, figure) for request in requests]
    numbers = [value for value in values if value is not None]
    top = max(numbers, default=0.0)
    cells = "".join(
        "✗" if request.failed else _cell(value, top) for request, value in zip(requests, values, strict=True)
    )
    value, style = values[-1], ""
    if value is None and numbers and not requests[-1].failed:
        value, style = numbers[-1], MUTED
    return Content.assemble((f"{name:<{_NAME}}", MUTED), (cells, color), (f" {format_number(value, digits)}", style))


def _cell(value: float | None, top: float) -> str:
    """Return a block as high as the value against the highest; a dot when it is not known."""
    if value is None or top <= 0:
        return "·"
    return _BLOCKS[min(len(_BLOCKS) - 1, int(value / top * len(_BLOCKS)))]
