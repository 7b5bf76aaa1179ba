"""One run on the screen: start-up, figures, charts, requests and log, whether it is watched, replayed or foreign."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from textual import work
from textual.app import ComposeResult
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import read_called_name
from dflash_tui.diagnosis.postmortem import Postmortem
from dflash_tui.events import FILLER, PROBE, AnyEvent, Health, Step
from dflash_tui.monitoring import startup_history
from dflash_tui.monitoring.foreign_server import ForeignServer
from dflash_tui.monitoring.startup_history import MedianSeconds, RecordedStart, expect_startup
from dflash_tui.planning.plan import Plan
from dflash_tui.presentation.client_text import Endpoint
from dflash_tui.presentation.startup_text import find_saved
from dflash_tui.run_state.alarms import find_alarms
from dflash_tui.run_state.speculation import advise_draft_length
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run
from dflash_tui.tui.composition import once_composed, while_open
from dflash_tui.tui.dialogs.alarms import render_alarms
from dflash_tui.tui.render import charts, ranks, status
from dflash_tui.tui.render.startup import render_startup
from dflash_tui.tui.widgets.basic import REQUESTS_SHOWN, Display, Positions, Requests, Timeline
from dflash_tui.tui.widgets.chart import NOTHING_YET, Chart, ChartLine
from dflash_tui.tui.widgets.failure import FailurePane
from dflash_tui.tui.widgets.log_pane import LogPane
from dflash_tui.tui.widgets.request_strip import RequestStrip
from dflash_tui.tui.widgets.tiles import Tiles, build_tiles

WINDOWS = (120.0, 600.0, 3600.0)
LOG_INTERVAL = 0.25
ALARMS_SHOWN = 3
ANSWERING = ("healthy", "warm", "unhealthy")
_EDGES = 4
_DRAW_EVERY = 4
# Without any event the figures still grow old: after this many ticks they are drawn again.
_DRAW_AT_LEAST_EVERY = 40


class Source(NamedTuple):
    """What a run is shown from, and what that can tell of it."""

    is_live: bool = False
    """Whether it is a server of ours that runs, or is on its way: it can be asked and stopped."""
    foreign: ForeignServer | None = None
    """The server of somebody else, of which the metrics alone are known."""
    no_gpu: str = "no GPU"
    """What is written where the load of GPUs would be drawn."""
    charts: Sequence[str] = charts.NAMES
    """The charts that have something to show, which follow each other where there is room for one."""
    no_requests: Content | None = None
    """What is written where no request was measured yet."""


class RunView(Vertical):
    """Shows one run, fed by `take`; it draws at most once a second, the log four times.

    Class `-starting`, `-live` or `-idle` is the stage, `-failed` adds the failure, `-log` leaves only the log.

    Args:
        now: The clock.
        source: What the run is shown from.
    """

    plan: Plan | None
    run: Run | None
    own: Run | None
    """The run of this machine that is shown: it can be launched again, and has a folder."""
    error: DflashError | None

    def __init__(self, now: Callable[[], float], source: Source) -> None:
        super().__init__(classes="-idle")
        self.now, self.source = now, source
        self.clear()
        self.window, self.first_chart = 0, 0
        self.frozen = False
        self.catching_up = False  # while what is shown is long past, its charts are not drawn
        self._ticks = 0
        self._keys: tuple[str, bool, bool] = ("", False, False)

    def clear(self, plan: Plan | None = None) -> None:
        """Clear the view; `plan` is what is being prepared, if anything."""
        self.plan, self.run, self.own = plan, None, None
        self.earlier: list[RecordedStart] = []
        self.usual: dict[Step, MedianSeconds] = {}
        self.state, self.error = RunState(), None
        self.sending = ""
        self.changed = True
        if self.is_mounted:
            self.query_one(LogPane).reset()

    def prepare(self, plan: Plan) -> None:
        """Start to show what comes before the launch of `plan`."""
        self.clear(plan)
        if self.is_mounted:
            self.read_history()

    def begin(self, run: Run, own: Run | None = None) -> None:
        """Start to show `run` from its launch on; `own` is the run of this machine that a recording is of."""
        self.clear(run.plan)
        self.run, self.own = run, run if self.source.is_live else own
        if self.is_mounted:
            self.read_history()
            self.query_one(LogPane).offer_ranks(run)

    @work(group="history", exclusive=True)
    async def read_history(self) -> None:
        """Read how long earlier starts like this one took; that may have to read their logs."""
        if plan := self.plan:
            own = self.run.id if self.run else ""
            self.usual = await asyncio.to_thread(startup_history.read_step_history, plan, own)
            self.earlier = await asyncio.to_thread(startup_history.list_starts, kind=plan.kind, exclude=own)
            self.changed = True

    def take(self, event: AnyEvent) -> None:
        """Take one event of the run."""
        self.state.apply(event)
        self.changed = True

    def fail(self, error: DflashError) -> None:
        """Show why the run could not be prepared, launched or watched."""
        self.error, self.changed = error, True

    def show_sending(self, run: Run, kind: str) -> None:
        """Show that a prompt of this kind is being sent to `run`, or none when it is empty."""
        if self.run is run:
            self.sending, self.changed = kind, True

    def compose(self) -> ComposeResult:
        yield Display(id="status")
        yield Display(id="alarms")
        yield Timeline()
        yield Display(id="ranks")
        yield Tiles()
        with VerticalScroll(id="startup", can_focus=False):
            yield Display(id="steps")
        yield FailurePane()
        yield RequestStrip()
        with Container(id="panes"):
            yield Chart("tok/s", top=10, id="tok_s")
            yield Chart("acceptance %", top=100, fixed=True, id="acceptance")
            yield Chart("memory GiB", top=1, fixed=True, id="memory")
            yield Chart("GPU %", top=100, fixed=True, nothing=self.source.no_gpu, id="gpu")
            yield Positions()
            yield Requests(self.source.no_requests)
            yield LogPane()

    @once_composed
    def on_mount(self) -> None:
        self.query_one("#startup").border_title = "start-up"
        self._mark_charts()
        self.query_one(LogPane).focus()
        if self.run:
            self.query_one(LogPane).offer_ranks(self.run)
        self.set_interval(LOG_INTERVAL, self.tick)
        self.read_history()
        self.call_after_refresh(self.draw)

    def on_resize(self) -> None:
        self.redraw()

    def redraw(self) -> None:
        """Draw all of it again once it is laid out."""
        self.changed = True
        self.call_after_refresh(self._show_end)
        self.call_after_refresh(self.draw)

    def tick(self) -> None:
        """Write new log lines; every fourth time draw what changed."""
        if self.frozen or not self.screen.is_active:
            return
        self._ticks += 1
        if self.stage == "starting" or self.has_class("-log"):
            self.write_log()  # elsewhere it is drawn with everything else, which costs half as much
        counting = self.stage == "starting" and self.state.exit is None and self.error is None
        due = self._ticks % _DRAW_EVERY == 0 and (self.changed or counting)
        if due or self._ticks % _DRAW_AT_LEAST_EVERY == 0:
            self.draw()

    @property
    def stage(self) -> str:
        """What is shown: idle without a run, starting until the server has answered a real request, then live."""
        if self.source.foreign:
            return "live"
        if self.plan is None:
            return "idle"
        answered = self.state.warm_at is not None or self.state.ready_at is not None
        return "live" if answered else "starting"

    @property
    def has_server(self) -> bool:
        """Whether a server of ours is there or on its way."""
        return self.source.is_live and self.plan is not None and self.error is None and self.state.exit is None

    @property
    def endpoint(self) -> Endpoint | None:
        """Where a server answers; None where none does."""
        if self.run is None or not self.has_server or self.state.status not in {*ANSWERING, "up"}:
            return None
        return Endpoint.from_run(self.run)

    @property
    def failure(self) -> Postmortem | None:
        """Why the run failed, or None while it did not."""
        return self.query_one(FailurePane).postmortem if self.is_mounted else None

    @property
    def drafted(self) -> int:
        """How many tokens are drafted per step; of a foreign server as many as it counts positions."""
        if self.plan:
            return self.plan.num_speculative_tokens
        return len(self.state.readings[-1].counters.per_position) if self.state.readings else 0

    @property
    def synthetic_acceptance(self) -> bool:
        """Whether vLLM accepts tokens at a configured rate, which says nothing about how many to draft."""
        settings = [word for word in self.plan.argv if word.startswith("{")] if self.plan else []
        return any('"synthetic' in word for word in settings)

    def allows(self, action: str) -> bool:
        """Return whether an action on what is shown does something now."""
        if action == "chart":
            return self.stage == "live" and (self.screen.has_class("-narrow") or self.screen.has_class("-short"))
        if action in {"freeze", "window", "alarms"}:
            return self.stage == "live"
        if action in {"send_prompts", "copy_curl"}:
            return self.has_server and self.stage == "live"
        if action == "report":
            return self.failure is not None and self.own is not None
        return action != "log" or self.stage != "idle"

    def write_log(self) -> None:
        """Write the lines that came since the last time."""
        self.query_one(LogPane).show(self.state, self.run.utc_offset if self.run else 0.0)

    @while_open
    def draw(self) -> None:
        """Bring every visible part up to date."""
        self.changed = False
        now = self.state.exit.at if self.state.exit else self.now()
        failed = self.query_one(FailurePane).show(self.own or self.run, self.state, self.error)
        before = self.classes
        for stage in ("idle", "starting", "live"):
            self.set_class(stage == self.stage, f"-{stage}")
        self.set_class(failed, "-failed")
        if self.classes != before:
            self.call_after_refresh(self._show_end)
        if (keys := (self.stage, self.has_server, self.failure is not None)) != self._keys:
            self._keys = keys
            self.screen.refresh_bindings()
        self.write_log()
        cluster = self.plan.cluster if self.plan else None
        self.set_class(cluster is not None, "-ranks")
        if cluster:
            self.query_one("#ranks", Display).show(ranks.render_ranks(cluster, self.state, now))
        self.query_one("#status", Display).show(self._render_status(now, self.size.width - 2))
        if self.stage == "starting":
            # A pane that was hidden has no width before.
            width = self.query_one("#startup").scrollable_content_region.width or self.size.width - _EDGES
            height = max(6, self.size.height * 6 // 10 - 2)  # what the style sheet gives, less the border
            expected = expect_startup(self.earlier, self.state.startup.cache)
            saved = find_saved(self.state, now, self.plan.start if self.plan else (), self.earlier)
            startup = render_startup(
                self.state, now, width, height, expected, usual=self.usual, saved=saved, ahead=self.has_server
            )
            self.query_one("#steps", Display).show(startup)
        elif self.stage == "live" and not self.catching_up:
            self._draw_live(now)

    def _render_status(self, now: float, width: int) -> Content:
        if foreign := self.source.foreign:
            return status.render_foreign_status(foreign.identity, self.state.health, frozen=self.frozen, width=width)
        return status.render_status(
            self.plan, self.run, self.state, self.error,
            now=now, frozen=self.frozen, width=width, endpoint=self.endpoint, host=read_called_name(),
        )  # fmt: skip

    def _show_end(self) -> None:
        """Show the end of the log, if it is followed; a pane that became smaller would show its middle."""
        self.query_one(LogPane).show_end()

    def _draw_live(self, now: float) -> None:
        span = WINDOWS[self.window]
        self._draw_alarms(now)
        self.query_one(Timeline).show(self.state.spans(now), self.state.time_to_ready)
        self.query_one(Tiles).show(build_tiles(self.state, self.plan, self.drafted, now, span))
        rates = self.state.window(span, now)
        if rates is None or not rates.per_position:  # nothing was drafted since somebody began to record
            rates = self.state.mean(span, now)
        shares = rates.per_position if rates else ()
        advice = advise_draft_length(shares, rates.steps) if rates and not self.synthetic_acceptance else None
        self.query_one(Positions).show(shares, advice)
        requests = [done for done in self.state.requests if done.kind not in {PROBE, FILLER} or done.error]
        self.query_one(Requests).show(requests[-REQUESTS_SHOWN:], self.sending)
        finished = self.state.finished
        self.query_one(RequestStrip).show(tuple(finished.requests), finished.cycle, can_send=self.has_server)
        self._draw_charts(now, span)

    def _draw_alarms(self, now: float) -> None:
        display = self.query_one("#alarms", Display)
        if self.source.foreign and self.state.health is Health.UNHEALTHY:  # of which no alarm can be judged
            lines = textwrap.wrap(self.state.health_detail or "it does not answer", max(20, self.size.width - 4))
            display.show(Content.assemble(("! ", "bold $error"), "\n  ".join(lines)))
            display.add_class("-raised")
            return
        rows = 1 if self.screen.has_class("-short") else ALARMS_SHOWN
        calm = "judged by its metrics only" if self.source.foreign else ""
        if self.has_server:
            calm = status.render_probe(self.state, now)
        alarms = find_alarms(self.state, now)
        display.show(render_alarms(alarms, now, max(0, self.size.width - 2), rows, calm))
        display.set_class(bool(alarms), "-raised")

    def _draw_charts(self, now: float, span: float) -> None:
        """Draw the charts that are shown, over the last `span` seconds."""
        drawn: dict[int, dict[str, tuple[list[ChartLine], float | None]]] = {}
        title = charts.name_load_chart(self.state, self.plan)
        self.query_one("#gpu", Chart).rename(title, self.source.no_gpu if title == charts.GPU_LOAD else NOTHING_YET)
        for chart in self.query(Chart):
            if chart.size.width:
                if (columns := chart.columns) not in drawn:
                    drawn[columns] = charts.build_chart_lines(self.state, now, span, columns)
                lines, top = drawn[columns][str(chart.id)]
                chart.show(lines, span, top)

    def _mark_charts(self) -> None:
        """Mark the chart to show where there is room for one, and the second for where there is room for two."""
        names = self.source.charts
        for number, name in enumerate(names):
            place = (number - self.first_chart) % len(names)
            chart = self.query_one(f"#{name}")
            chart.set_class(place == 0, "-first")
            chart.set_class(place == 1, "-second")

    def show_next_chart(self) -> None:
        """Begin with the next chart."""
        self.first_chart = (self.first_chart + 1) % len(self.source.charts)
        self._mark_charts()
        self.redraw()

    def toggle_log(self) -> None:
        """Give the log all of the view, or its part of it."""
        self.toggle_class("-log")
        self.query_one(LogPane).focus()
        self.screen.refresh_bindings()
        self.redraw()
