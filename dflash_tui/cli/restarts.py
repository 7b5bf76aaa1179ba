"""Launch a failed server again, after a wait by the recipe's policy, or say why not."""

from __future__ import annotations

import asyncio
import time

from dflash_tui.cli.console import print_data, print_status
from dflash_tui.common.errors import ServerFailed
from dflash_tui.diagnosis import postmortem
from dflash_tui.event_json import encode
from dflash_tui.events import Event
from dflash_tui.launch import restart_policy, shutdown
from dflash_tui.planning.recipes.recipe import RestartPolicy
from dflash_tui.presentation.plan_text import format_restart_limit
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run

_INTERVAL = 0.5


class Restarting(Event, frozen=True, tag="restarting"):
    """The server of `run` failed and is launched again after `wait` seconds, for the `restart`-th time."""

    run: str
    restart: int
    wait: float


class Restarts:
    """Counts and delays the restarts of one `up`."""

    def __init__(self, policy: RestartPolicy, *, as_json: bool) -> None:
        self._policy, self._json = policy, as_json
        self._at: list[float] = []
        self._failures: list[str] = []

    async def wait(self, run: Run, state: RunState, failed: ServerFailed) -> None:
        """Wait until the failed server of `run` may be launched again, having stopped what was left of it.

        Raises:
            ServerFailed: it must not be launched again; with the earlier failures.
        """
        if (
            not self._policy.times
            or state.exit is None
            or (why_failed := postmortem.build_postmortem(run, state)) is None
        ):
            raise failed
        self._failures.append(f"{run.id}: {why_failed.diagnosis.what}: {why_failed.diagnosis.cause}")
        now = time.monotonic()
        if why := restart_policy.explain_no_restart(self._policy, state, why_failed.diagnosis.kind, self._at, now):
            raise self._give_up(failed, why)
        print_status(str(failed))
        await shutdown.stop_and_release_memory(run, print_status)  # leftover processes hold memory, and maybe the port
        seconds = restart_policy.restart_delay(self._policy, self._at, now)
        if self._json:
            print_data(encode(Restarting(time.time(), run.id, len(self._at) + 1, seconds)).decode())
        print_status(
            f"launching again in {seconds:.0f} s: restart {len(self._at) + 1}, {format_restart_limit(self._policy)}"
        )
        print_status(f"cancel it with Ctrl-C or dflash-tui stop {run.id}")
        while (left := now + seconds - time.monotonic()) > 0:
            if restart_policy.are_restarts_cancelled(run):
                break
            await asyncio.sleep(min(left, _INTERVAL))
        if restart_policy.are_restarts_cancelled(run):
            raise self._give_up(failed, "it was stopped with dflash-tui stop")
        self._at.append(time.monotonic())

    def _give_up(self, failed: ServerFailed, why: str) -> ServerFailed:
        before = self._failures[:-1]
        evidence = [failed.evidence, *(["failed before:", *before] if before else [])]
        return ServerFailed(
            f"{failed.what}; not launched again: {why}", evidence="\n  ".join(filter(None, evidence)), hint=failed.hint
        )
