"""One run on screen (live, replayed or foreign): start-up, figures, charts, requests and log."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from textual import work
from textual.app import ComposeResult
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import read_called_name, truncate_middle
from dflash_tui.diagnosis.cause import shorten_frame
from dflash_tui.diagnosis.postmortem import Postmortem, build_postmortem
from dflash_tui.events import FILLER, PROBE, AnyEvent, Health, Step
from dflash_tui.monitoring import startup_history
from dflash_tui.monitoring.foreign_server import ForeignServer
from dflash_tui.monitoring.startup_history import MedianSeconds, RecordedStart, expect_startup
from dflash_tui.planning.plan import Plan
from dflash_tui.presentation.benchmark_text import format_forecast
from dflash_tui.presentation.client_text import Endpoint
from dflash_tui.run_state.alarms import find_alarms
from dflash_tui.run_state.speculation import DraftForecast, advise_draft_length
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run
from dflash_tui.tui.dialogs.basic import render_alarms
from dflash_tui.tui.render.plan import render_hung
from dflash_tui.tui.render.run import render_foreign_status, render_ranks, render_startup, render_status
from dflash_tui.tui.widgets.basic import (
    MUTED,
    Display,
    once_composed,
    render_error,
    while_open,
)
from dflash_tui.tui.widgets.chart import (
    GPU_LOAD,
    NAMES,
    NOTHING_YET,
    Chart,
    ChartLine,
    build_chart_lines,
    name_load_chart,
)
from dflash_tui.tui.widgets.figures import (
    REQUESTS_SHOWN,
    Figures,
    Positions,
    Requests,
    RequestStrip,
    build_speed,
    build_tiles,
)
from dflash_tui.tui.widgets.log_pane import LogPane
from dflash_tui.vllm_output.known_failures import cut_after_sign

WINDOWS = (120.0, 600.0, 3600.0)
LOG_INTERVAL = 0.25
ALARMS_SHOWN = 3
ANSWERING = ("healthy", "warm", "unhealthy")
_EDGES = 4
_DRAW_EVERY = 4
# Figures age even without events, so they are redrawn after this many ticks.
_DRAW_AT_LEAST_EVERY = 40


class Source(NamedTuple):
    """Where a run's data comes from, and what it can contain."""

    is_live: bool = False
    """Whether it is a server launched here that is running or starting, so it can be queried and stopped."""
    foreign: ForeignServer | None = None
    """The foreign server, of which only the metrics are known."""
    no_gpu: str = "no GPU"
    """The text shown in place of the GPU chart."""
    charts: Sequence[str] = NAMES
    """The charts that can have data, in the order in which a key cycles through them."""
    no_requests: Content | None = None
    """The text shown while no request has been measured."""


class RunView(Vertical):
    """Shows one run, fed by `take`; draws at most once a second, the log four times.

    The class `-starting`, `-live` or `-idle` is the stage, `-failed` adds the failure, `-log` leaves only the log.
    """

    plan: Plan | None
    run: Run | None
    own: Run | None
    """The run on this machine that is shown: it has a folder and can be launched again."""
    error: DflashError | None

    def __init__(self, now: Callable[[], float], source: Source) -> None:
        super().__init__(classes="-idle")
        self.now, self.source = now, source
        self.clear()
        self.window, self.first_chart = 0, 0
        self.frozen = False
        self.catching_up = False  # True while a replay catches up: its charts are not drawn
        self._ticks = 0
        self._keys: tuple[str, bool, bool, bool] = ("", False, False, False)

    def clear(self, plan: Plan | None = None) -> None:
        """Clear the view; `plan` is the plan in preparation, if any."""
        self.plan, self.run, self.own = plan, None, None
        self.earlier: list[RecordedStart] = []
        self.usual: dict[Step, MedianSeconds] = {}
        self.state, self.error = RunState(), None
        self.sending = ""
        self.forecast: DraftForecast | None = None
        self.changed = True
        if self.is_mounted:
            self.query_one(LogPane).reset()
            for chart in self.query(Chart):  # a hidden chart is drawn up to a second later
                chart.show((), WINDOWS[self.window])

    def prepare(self, plan: Plan) -> None:
        """Start to show the preparation of `plan`."""
        self.clear(plan)
        if self.is_mounted:
            self.read_history()

    def begin(self, run: Run, own: Run | None = None) -> None:
        """Start to show `run` from its launch; `own` is the local run behind a recording, if any."""
        self.clear(run.plan)
        self.run, self.own = run, run if self.source.is_live else own
        if self.is_mounted:
            self.read_history()
            self.query_one(LogPane).offer_ranks(run)

    @work(group="history", exclusive=True)
    async def read_history(self) -> None:
        """Read the durations of earlier starts of the same kind, if needed from their logs."""
        if plan := self.plan:
            own = self.run.id if self.run else ""
            self.usual = await asyncio.to_thread(startup_history.read_step_history, plan, own)
            self.earlier = await asyncio.to_thread(startup_history.list_starts, kind=plan.kind, exclude=own)
            self.changed = True

    def take(self, event: AnyEvent) -> None:
        """Apply an event of the run."""
        self.state.apply(event)
        self.changed = True

    def fail(self, error: DflashError) -> None:
        """Show why the run could not be prepared, launched or watched."""
        self.error, self.changed = error, True

    def show_sending(self, run: Run, kind: str) -> None:
        """Show that a prompt of this kind is being sent to `run`; "" for none."""
        if self.run is run:
            self.sending, self.changed = kind, True

    def show_forecast(self, run: Run, forecast: DraftForecast | None) -> None:
        """Show what fewer drafts would give, as the last prompts sent to `run` predict; None for nothing."""
        if self.run is run:
            self.forecast, self.changed = forecast, True

    def compose(self) -> ComposeResult:
        yield Display(id="status")
        yield Display(id="alarms")
        yield Display(id="ranks")
        yield Figures()
        with VerticalScroll(id="startup", can_focus=False):
            yield Display(id="steps")
        yield FailurePane()
        yield RequestStrip()
        yield Display(id="forecast")
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
        """Redraw everything after the next layout."""
        self.changed = True
        self.call_after_refresh(self._show_end)
        self.call_after_refresh(self.draw)

    def tick(self) -> None:
        """Write new log lines; every fourth tick draw what changed."""
        if self.frozen or not self.screen.is_active:
            return
        self._ticks += 1
        if self.stage == "starting" or self.has_class("-log"):
            self.write_log()  # otherwise it is drawn with everything else, at half the cost
        counting = self.stage == "starting" and self.state.exit is None and self.error is None
        due = self._ticks % _DRAW_EVERY == 0 and (self.changed or counting)
        if due or self._ticks % _DRAW_AT_LEAST_EVERY == 0:
            self.draw()

    @property
    def stage(self) -> str:
        """Idle without a run, starting until the server has answered a real request, then live."""
        if self.source.foreign:
            return "live"
        if self.plan is None:
            return "idle"
        answered = self.state.warm_at is not None or self.state.ready_at is not None
        return "live" if answered else "starting"

    @property
    def has_server(self) -> bool:
        """Whether a server launched here is running or starting."""
        return self.source.is_live and self.plan is not None and self.error is None and self.state.exit is None

    @property
    def endpoint(self) -> Endpoint | None:
        """The server's endpoint; None if it does not answer requests."""
        if self.run is None or not self.has_server or self.state.status not in {*ANSWERING, "up"}:
            return None
        return Endpoint.from_run(self.run)

    @property
    def failure(self) -> Postmortem | None:
        """The post-mortem of the run; None if it has not failed."""
        return self.query_one(FailurePane).postmortem if self.is_mounted else None

    @property
    def drafted(self) -> int:
        """The drafted tokens per step; for a foreign server, the number of positions it counts."""
        if self.plan:
            return self.plan.num_speculative_tokens
        return len(self.state.readings[-1].counters.per_position) if self.state.readings else 0

    def allows(self, action: str) -> bool:
        """Return whether an action is available now."""
        if action == "chart":
            return self.stage == "live" and (self.screen.has_class("-narrow") or self.screen.has_class("-short"))
        if action in {"freeze", "window", "alarms"}:
            return self.stage == "live"
        if action in {"send_prompts", "copy_curl"}:
            return self.has_server and self.stage == "live"
        if action == "share":
            return self.own is not None and self.stage == "live"
        if action == "report":
            return self.failure is not None and self.own is not None
        return action != "log" or self.stage != "idle"

    def write_log(self) -> None:
        """Write the new log lines."""
        self.query_one(LogPane).show(self.state, self.run.utc_offset if self.run else 0.0)

    @while_open
    def draw(self) -> None:
        """Update every visible part."""
        self.changed = False
        now = self.state.exit.at if self.state.exit else self.now()
        failed = self.query_one(FailurePane).show(self.own or self.run, self.state, self.error)
        before = self.classes
        for stage in ("idle", "starting", "live"):
            self.set_class(stage == self.stage, f"-{stage}")
        self.set_class(failed, "-failed")
        self.set_class(self.forecast is not None, "-forecast")
        if self.classes != before:
            self.call_after_refresh(self._show_end)
        keys = (self.stage, self.has_server, self.failure is not None, self.forecast is not None)
        if keys != self._keys:
            self._keys = keys
            self.screen.refresh_bindings()
        self.write_log()
        cluster = self.plan.cluster if self.plan else None
        self.set_class(cluster is not None, "-ranks")
        if cluster:
            self.query_one("#ranks", Display).show(render_ranks(cluster, self.state, now))
        self.query_one("#status", Display).show(self._render_status(now, self.size.width - 2))
        if self.stage == "starting":
            # A hidden pane has no width yet.
            width = self.query_one("#startup").scrollable_content_region.width or self.size.width - _EDGES
            height = max(6, self.size.height * 6 // 10 - 2)  # height in the style sheet, less the border
            expected = expect_startup(self.earlier, self.state.startup.cache)
            startup = render_startup(self.state, now, width, height, expected, usual=self.usual, ahead=self.has_server)
            self.query_one("#steps", Display).show(startup)
        elif self.stage == "live" and not self.catching_up:
            self._draw_live(now)

    def _render_status(self, now: float, width: int) -> Content:
        if foreign := self.source.foreign:
            return render_foreign_status(foreign.identity, self.state.health, frozen=self.frozen, width=width)
        return render_status(
            self.plan, self.run, self.state, self.error,
            now=now, frozen=self.frozen, width=width, endpoint=self.endpoint, host=read_called_name(),
        )  # fmt: skip

    def _show_end(self) -> None:
        """Scroll a followed log to its end; after shrinking, the pane would show its middle."""
        self.query_one(LogPane).show_end()

    def _draw_live(self, now: float) -> None:
        span = WINDOWS[self.window]
        self._draw_alarms(now)
        tiles = build_tiles(self.state, self.plan, self.drafted, now, span)
        self.query_one(Figures).show(build_speed(self.state, now), tiles)
        rates = self.state.readings.window(span, now)
        if rates is None or not rates.per_position:  # nothing was drafted since the recording began
            rates = self.state.readings.mean(span, now)
        shares = rates.per_position if rates else ()
        synthetic = self.plan is not None and self.plan.accepts_synthetically
        advice = advise_draft_length(shares, rates.steps) if rates and not synthetic else None
        self.query_one(Positions).show(shares, advice)
        requests = [done for done in self.state.requests if done.kind not in {PROBE, FILLER} or done.error]
        self.query_one(Requests).show(requests[-REQUESTS_SHOWN:], self.sending)
        finished = self.state.finished
        self.query_one(RequestStrip).show(tuple(finished.requests), finished.cycle)
        if self.forecast:
            text = render_hung(("a  ", "bold $primary"), format_forecast(self.forecast), max(0, self.size.width - 2))
            self.query_one("#forecast", Display).show(text)
        self._draw_charts(now, span)

    def _draw_alarms(self, now: float) -> None:
        display = self.query_one("#alarms", Display)
        if self.source.foreign and self.state.health is Health.UNHEALTHY:  # foreign servers have no alarms
            lines = textwrap.wrap(self.state.health_detail or "it does not answer", max(20, self.size.width - 4))
            display.show(Content.assemble(("! ", "bold $error"), "\n  ".join(lines)))
            self.add_class("-alarmed")
            return
        rows = 1 if self.screen.has_class("-short") else ALARMS_SHOWN
        alarms = find_alarms(self.state, now)
        display.show(render_alarms(alarms, now, max(0, self.size.width - 2), rows))
        self.set_class(bool(alarms), "-alarmed")

    def _draw_charts(self, now: float, span: float) -> None:
        drawn: dict[int, dict[str, tuple[list[ChartLine], float | None]]] = {}
        title = name_load_chart(self.state, self.plan)
        self.query_one("#gpu", Chart).rename(title, self.source.no_gpu if title == GPU_LOAD else NOTHING_YET)
        for chart in self.query(Chart):
            if chart.size.width:
                if (columns := chart.columns) not in drawn:
                    drawn[columns] = build_chart_lines(self.state, now, span, columns)
                lines, top = drawn[columns][str(chart.id)]
                chart.show(lines, span, top)

    def _mark_charts(self) -> None:
        """Mark the chart to show where one fits, and the second where two fit."""
        names = self.source.charts
        for number, name in enumerate(names):
            place = (number - self.first_chart) % len(names)
            chart = self.query_one(f"#{name}")
            chart.set_class(place == 0, "-first")
            chart.set_class(place == 1, "-second")

    def show_next_chart(self) -> None:
        """Show the next chart."""
        self.first_chart = (self.first_chart + 1) % len(self.source.charts)
        self._mark_charts()
        self.redraw()

    def toggle_log(self) -> None:
        """Toggle between the log alone and the whole view."""
        self.toggle_class("-log")
        self.query_one(LogPane).focus()
        self.screen.refresh_bindings()
        self.redraw()


_LABEL = 10
_QUOTED_LINES = 2
_RAGGED = 8  # cells that a line may lose where a long word wraps
_NARROWEST = 20
_REASON_EDGES = 6


class FailurePane(VerticalScroll):
    """Shows why a run could not be prepared or launched, or why it failed; hidden otherwise."""

    def __init__(self) -> None:
        super().__init__(id="failure")
        self.border_title = "failure"
        self.postmortem: Postmortem | None = None
        self._error: DflashError | None = None
        self._last_state: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        yield Static(id="reason", markup=False)

    def show(self, run: Run | None, state: RunState, error: DflashError | None) -> bool:
        """Show the failure of `run`; return whether there is one."""
        run_state = (run.id if run else "", state.status, state.exit, state.autopsy, tuple(state.problems), error)
        if run_state != self._last_state:  # finding the cause scans processes and ports
            self._last_state, self._error = run_state, error
            self.postmortem = build_postmortem(run, state) if run and error is None else None
        self._write()
        return error is not None or self.postmortem is not None

    def on_resize(self) -> None:
        """Re-wrap the text: a hidden pane has no width."""
        self._write()

    def _write(self) -> None:
        width = self.scrollable_content_region.width or self.app.size.width - _REASON_EDGES
        if error := self._error:
            content = render_error(error)
        elif self.postmortem:
            content = render_postmortem(self.postmortem, width, short=self.screen.has_class("-short"))
        else:
            return
        reason = self.query_one("#reason", Static)
        if content != reason.content:
            reason.update(content)


def render_postmortem(postmortem: Postmortem, width: int, *, short: bool = False) -> Content:
    """Return a post-mortem in rows of `width` cells: the cause first, then the remedies with their keys.

    Evidence is shown in full; on a `short` screen it is cut to two rows, so that the remedies stay visible.
    """
    diagnosis, quoted = postmortem.diagnosis, _QUOTED_LINES * max(_NARROWEST, width - _LABEL - _RAGGED)
    rows = [render_hung(("✗ ", "bold $error"), diagnosis.what, width, "bold")]
    rows.append(_row("cause", diagnosis.cause, width, "bold"))
    for place, line in enumerate(line for line in (*diagnosis.evidence, postmortem.leftovers) if line):
        whole = shorten_frame(line)  # the full width has room for what a cut line did not show
        excerpt = truncate_middle(cut_after_sign(whole), quoted) if short else whole
        rows.append(_row("" if place else "evidence", excerpt, width))
    for place, step in enumerate(diagnosis.fix):
        rows.append(_row("" if place else "to do", step, width))
    if diagnosis.link:
        rows.append(_row("", diagnosis.link, width))
    for place, remedy in enumerate(postmortem.remedies, 1):
        key = "f" if place == 1 else f"f {place}"
        rows.append(render_hung((f"{key:>{_LABEL - 2}}  ", "bold $primary"), remedy.words, width))
    rows.append(_row("log", postmortem.log, width))
    return Content("\n").join(rows)


def _row(label: str, text: str, width: int, style: str = "") -> Content:
    return render_hung((f"{label:{_LABEL}}", MUTED), text, width, style)
