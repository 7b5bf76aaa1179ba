"""Launching a server again after its death: waits as the recipe's policy has it, or says why not."""

from __future__ import annotations

import asyncio
import time

from dflash_tui.cli.console import print_data, print_status
from dflash_tui.common.errors import ServerFailed
from dflash_tui.diagnosis import postmortem
from dflash_tui.events import Event, encode
from dflash_tui.launch import restart_policy, shutdown
from dflash_tui.planning.recipe import RestartPolicy
from dflash_tui.presentation.plan_words import format_restart_limit
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import Run

_INTERVAL = 0.5


class Restarting(Event, frozen=True, tag="restarting"):
    """The server of `run` died and is launched again after `wait` seconds, for the `restart`-th time."""

    run: str
    restart: int
    wait: float


class Restarts:
    """The restarts of one `up`."""

    def __init__(self, policy: RestartPolicy, *, as_json: bool) -> None:
        self._policy, self._json = policy, as_json
        self._at: list[float] = []
        self._deaths: list[str] = []

    async def pause(self, run: Run, state: RunState, failed: ServerFailed) -> None:
        """Return when the server of `run`, which `failed`, may be launched again; nothing of it is left then.

        Raises:
            ServerFailed: it is not; with what was tried, where a server was launched again before.
        """
        if not self._policy.times or state.exit is None or (found := postmortem.build_postmortem(run, state)) is None:
            raise failed
        self._deaths.append(f"{run.id}: {found.diagnosis.what}: {found.diagnosis.cause}")
        now = time.monotonic()
        if why := restart_policy.explain_no_restart(self._policy, state, found.diagnosis.kind, self._at, now):
            raise self._given_up(failed, why)
        print_status(str(failed))
        await shutdown.stop_and_release_memory(run, print_status)  # what is left of it holds memory, and maybe the port
        seconds = restart_policy.restart_delay(self._policy, self._at, now)
        if self._json:
            print_data(encode(Restarting(time.time(), run.id, len(self._at) + 1, seconds)).decode())
        print_status(
            f"launching again in {seconds:.0f} s: restart {len(self._at) + 1}, {format_restart_limit(self._policy)}"
        )
        print_status(f"Ctrl-C or dflash-tui stop {run.id} calls it off")
        while (left := now + seconds - time.monotonic()) > 0:
            if restart_policy.are_restarts_cancelled(run):
                break
            await asyncio.sleep(min(left, _INTERVAL))
        if restart_policy.are_restarts_cancelled(run):
            raise self._given_up(failed, "somebody asked to stop it")
        self._at.append(time.monotonic())

    def _given_up(self, failed: ServerFailed, why: str) -> ServerFailed:
        before = self._deaths[:-1]
        evidence = [failed.evidence, *(["before it:", *before] if before else [])]
        return ServerFailed(
            f"{failed.what}; not launched again: {why}", evidence="\n  ".join(filter(None, evidence)), hint=failed.hint
        )
