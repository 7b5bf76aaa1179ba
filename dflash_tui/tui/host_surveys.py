"""What the other hosts of a launch say of it, asked while its plan is looked at: link, own command, failed checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from textual import work

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import pluralize
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.peers import cluster_launch, far_program
from dflash_tui.peers.transport import NeedsProgram
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.presentation.plan_text import format_check
from dflash_tui.runs import registry
from dflash_tui.tui.dialogs.peers import PeerDialog, list_used_hosts
from dflash_tui.tui.dialogs.program import ProgramDialog
from dflash_tui.tui.launch_selection import LaunchSelection
from dflash_tui.tui.widgets.basic import SizedScreen

_SETTLED = 0.4  # seconds on a plan before its hosts are asked about it


class HostSurveys:
    """The answers of the other hosts, for the plan that was asked about last."""

    def __init__(self) -> None:
        self._last_key: tuple[str, ...] = ()
        self._error: DflashError | None = None
        self._wrong: list[str] | None = None
        self._missing: NeedsProgram | None = None
        self.installed: set[str] = set()
        """The hosts that this program was installed on from here."""

    def take_missing(self) -> NeedsProgram | None:
        """Return the host without this program that the last survey met, once, so that it is offered once."""
        missing, self._missing = self._missing, None
        return missing

    def forget(self) -> None:
        """Ask again, also about a plan that was asked about."""
        self._last_key, self._error, self._wrong = (), None, None

    def wants(self, plan: Plan) -> bool:
        """Whether the hosts of a plan are named and were not asked about it."""
        return bool(plan.relaunch_request.peers) and self._key(plan) != self._last_key

    def begin(self, plan: Plan) -> None:
        """Remember which plan is asked about."""
        self._last_key, self._error, self._wrong = self._key(plan), None, None

    def is_unreached(self, plan: Plan) -> bool:
        """Whether a plan takes other hosts that have not answered."""
        return plan.cluster is not None and bool(plan.relaunch_request.peers) and not plan.cluster.is_named

    def _key(self, plan: Plan) -> tuple[str, ...]:
        """What a host would run depends on what was asked for, and not on the link that it told of."""
        return (*plan.relaunch_request.to_argv(), plan.target, plan.mode.value)

    async def survey(self, plan: Plan, choice: LaunchSelection, draw: Callable[[], None]) -> None:
        """Connect to the hosts, keep their link and their commands in `choice`, and `draw` after each answer."""
        request = plan.relaunch_request
        try:
            async with cluster_launch.open_peers(request.peers) as peers:
                planned: PlannedLaunch = await cluster_launch.plan_over_hosts(request, peers)
                if planned.plan.cluster:
                    choice.clusters = {**choice.clusters, request.peers: planned.plan.cluster}
                draw()
                surveyed = await cluster_launch.survey_ranks(planned, peers)
        except NeedsProgram as error:
            self._error = self._explain_missing(error)
        except DflashError as error:
            self._error = error
        else:
            choice.surveyed = {**choice.surveyed, planned.plan.argv: surveyed.planned}
            self._wrong = [format_check(check) for check in surveyed.checks if check.level.value != "ok"]
        draw()

    def _explain_missing(self, error: NeedsProgram) -> DflashError:
        """Return what to say of a host without this program, and keep that it is to be offered there."""
        if error.host in self.installed:
            return far_program.build_unheard_error(error)
        self._missing = error
        return UsageError(error.what, evidence=error.evidence, hint="h, and the host again, offers to install it there")

    def describe(self, plan: Plan) -> list[tuple[str, str]]:
        """Return rows for the plan: the link of the hosts, and what is wrong with them."""
        if not (peers := plan.relaunch_request.peers):
            return []
        if self._error:
            hint = f"\n→ {self._error.hint}" if self._error.hint else ""
            return [("hosts", f"✗ {self._error.what}{hint}")]
        cluster, names = plan.cluster, ", ".join(peers)
        if cluster is None or not cluster.is_named:
            return [("hosts", f"connecting to {names} …")]
        rows = []
        for rank, host in enumerate(cluster.hosts):
            link = f"{host.address} on {host.interface}, {', '.join(host.devices) or 'sockets'}"
            rows.append(("" if rank else "hosts", f"rank {rank} {host.host or 'this machine'}: {link}"))
        rows += [("", f"{rank.host}: {text}") for rank in plan.ranks for text in rank.models]
        if self._wrong is None:
            rows.append(("", f"{names}: being checked …"))
        elif self._wrong:
            rows += [("", line) for line in self._wrong]
        else:
            rows.append(("", f"{pluralize(len(peers), 'other host')} checked: nothing is wrong"))
        return rows


class HostsScreen(SizedScreen[None]):
    """A screen on which the hosts of a launch are chosen, and asked about the plan that is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.choice, self.hosts = LaunchSelection(), HostSurveys()

    def draw(self) -> None:
        """Bring every part up to date."""
        raise NotImplementedError

    @property
    def _recipe(self) -> Recipe | None:
        """The recipe that is shown."""
        raise NotImplementedError

    def action_hosts(self) -> None:
        """Choose the hosts of the recipe that is shown."""
        if not (recipe := self._recipe):
            return

        def choose(hosts: tuple[str, ...] | None) -> None:
            if hosts is not None:
                self.hosts.forget()
                self.choice.choose_peers(recipe, hosts)
                self.draw()

        used = list_used_hosts(registry.list_runs())
        self.app.push_screen(PeerDialog(self.choice.request(recipe).peers, used), choose)

    def ask_hosts(self, plan: Plan) -> None:
        """Ask the other hosts of a plan that is shown what they would run, unless they were asked."""
        if self.is_active and self.hosts.wants(plan):
            self._survey_hosts(plan)

    def has_hosts(self, plan: Plan) -> bool:
        """Whether the other hosts of a plan have answered, if it takes any; if not, say so."""
        if self.hosts.is_unreached(plan):
            self.notify(f"no answer from {', '.join(plan.relaunch_request.peers)} yet", severity="warning")
            return False
        return True

    def is_alone(self, plan: Plan) -> bool:
        """Whether a plan takes this machine only, as what is measured has to; if not, say so."""
        if plan.relaunch_request.peers:
            where = f"dflash-tui ab {plan.recipe} --peer {plan.relaunch_request.peers[0]}"
            self.notify(f"the panel measures this machine alone (h); over hosts: {where}", severity="warning")
            return False
        return True

    @work(exclusive=True, group="hosts")
    async def _survey_hosts(self, plan: Plan) -> None:
        """Ask the other hosts about a plan when it has been looked at for a moment."""
        self.hosts.begin(plan)
        await asyncio.sleep(_SETTLED)
        await self.hosts.survey(plan, self.choice, self.draw)
        if (missing := self.hosts.take_missing()) and self.is_current:
            self._offer_program(missing)

    def _offer_program(self, error: NeedsProgram) -> None:
        """Ask whether this program is to be installed on a host, and ask that host again when it was."""

        def ask_again(installed: bool | None) -> None:
            if installed:
                self.hosts.installed.add(error.host)
                self.hosts.forget()
                self.draw()

        self.app.push_screen(ProgramDialog(error), ask_again)
