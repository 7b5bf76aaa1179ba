"""The grid of the run screen: four charts, positions, requests and the log."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Container

from dflash_tui.planning.plan import Plan
from dflash_tui.run_state.state import RunState
from dflash_tui.tui.render import charts
from dflash_tui.tui.widgets.basic import Positions, Requests
from dflash_tui.tui.widgets.chart import NOTHING_YET, Chart, ChartLine
from dflash_tui.tui.widgets.log_pane import LogPane


class RunPanes(Container):
    """The grid of a run: its charts, what each drafted position is worth, its requests and its log.

    Args:
        no_gpu: What is written where the load of GPUs would be drawn.
        names: The charts that have something to show, which follow each other where there is room for one.
    """

    def __init__(self, no_gpu: str, names: Sequence[str]) -> None:
        super().__init__(id="panes")
        self.no_gpu, self.names = no_gpu, names
        self.first = 0

    def compose(self) -> ComposeResult:
        yield Chart("tok/s", top=10, id="tok_s")
        yield Chart("acceptance %", top=100, fixed=True, id="acceptance")
        yield Chart("memory GiB", top=1, fixed=True, id="memory")
        yield Chart("GPU %", top=100, fixed=True, nothing=self.no_gpu, id="gpu")
        yield Positions()
        yield Requests()
        yield LogPane()

    def on_mount(self) -> None:
        self._mark_charts()

    def show_next_chart(self) -> None:
        """Begin with the next chart."""
        self.first = (self.first + 1) % len(self.names)
        self._mark_charts()

    def draw_charts(self, state: RunState, plan: Plan | None, now: float, span: float) -> None:
        """Draw the charts that are shown, over the last `span` seconds; `plan` is what was launched."""
        drawn: dict[int, dict[str, tuple[list[ChartLine], float | None]]] = {}
        title = charts.name_load_chart(state, plan)
        self.query_one("#gpu", Chart).rename(title, self.no_gpu if title == charts.GPU_LOAD else NOTHING_YET)
        for chart in self.query(Chart):
            if chart.size.width:
                if (columns := chart.columns) not in drawn:
                    drawn[columns] = charts.build_chart_lines(state, now, span, columns)
                lines, top = drawn[columns][str(chart.id)]
                chart.show(lines, span, top)

    def _mark_charts(self) -> None:
        """Mark the chart to show where there is room for one, and the second for where there is room for two."""
        for number, name in enumerate(self.names):
            place = (number - self.first) % len(self.names)
            chart = self.query_one(f"#{name}")
            chart.set_class(place == 0, "-first")
            chart.set_class(place == 1, "-second")
