"""A server over several hosts in the panel: which hosts are chosen, what they answer, and how each is shown."""

from collections.abc import Sequence
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from textual.widgets import Input, OptionList

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.events import Preparing, RankSampled, RankState, Step
from dflash_tui.launch import planner
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.peers import cluster_launch, far_program
from dflash_tui.peers.transport import NeedsProgram
from dflash_tui.planning.cluster import Cluster, ClusterHost, RankCommand
from dflash_tui.planning.request import LaunchChanges, LaunchRequest
from dflash_tui.run_state.state import RunState
from dflash_tui.runs.run import FarRank, Run
from dflash_tui.tui.dialogs.basic import ChoiceDialog, Confirm
from dflash_tui.tui.dialogs.doctor import plan_relaunch
from dflash_tui.tui.dialogs.hosts import list_used_hosts
from dflash_tui.tui.render.run import render_ranks
from dflash_tui.vllm_output.log_reader import LogReader
from tests.tui.conftest import BASE, a_recipe, a_run, panel_on_run
from tests.tui.panel import app, feed, shows, text, wait_for, words

GIB = 1 << 30
PAIR = Cluster((ClusterHost("", "10.0.0.1", "eth0"), ClusterHost("spark-b", "10.0.0.2", "eth0", ("rocep1s0f1",))))


def a_pair() -> Run:
    plan = a_run().plan
    return replace(a_run(), plan=replace(plan, cluster=PAIR), far_ranks=(FarRank(1, "spark-b", "there"),))


def test_hosts_of_earlier_runs_come_newest_first():
    runs = [a_run(), a_pair(), replace(a_run(), far_ranks=(FarRank(1, "c", "x"),)), a_pair()]
    assert list_used_hosts(runs) == [("spark-b",), ("c",)]


@pytest.fixture
def reached(monkeypatch) -> list[Sequence[str]]:
    """Let the other hosts answer; return who was asked."""
    asked: list[Sequence[str]] = []

    class Hosts:
        async def plan(self, request):
            return planner.plan_launch(replace(request, cluster=PAIR), GpuProbe(), recipe=a_recipe())

        async def survey(self, planned):
            ranks = (RankCommand("spark-b", ("vllm", "its-own-command"), {}, ("target: 60.0 GB to copy",)),)
            return [], planned._replace(plan=replace(planned.plan, ranks=ranks))

    async def reach_hosts(request: LaunchRequest) -> Hosts:
        asked.append(request.peers)
        if "nowhere" in request.peers:
            raise UsageError("nowhere cannot be reached", hint="check the cable")
        return Hosts()

    monkeypatch.setattr(cluster_launch, "reach_hosts", reach_hosts)
    return asked


async def type_host(pilot, host: str) -> None:
    await pilot.press("h")
    await wait_for(
        pilot, lambda: isinstance(pilot.app.screen, ChoiceDialog) and pilot.app.screen.query_one(Input).has_focus
    )
    pilot.app.screen.query_one(Input).value = host
    await pilot.press("enter")


async def test_typed_host_is_queried_and_command_shown(reached):
    """The recipe is split over both without being told; the far host says itself what it would run."""
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(120, 60)) as pilot:
        await wait_for(pilot, lambda: "the CPU demo" in text(panel))
        await type_host(pilot, "spark-b")
        await shows(pilot, "10.0.0.2 on eth0, rocep1s0f1", "nothing is wrong", "spark-b: target: 60.0 GB")
        plan = panel.launch_screen.choice.plan(a_recipe()).plan
        assert plan.ranks[0].argv[-1] == "its-own-command"
        assert plan.relaunch_request.settings == {"tensor-parallel-size": "2"}
        await pilot.press("a")
        await shows(pilot, "measures this machine alone", "--peer")
        await pilot.press("o")
        await shows(pilot, "tensor-parallel-size", "these options change", "--node-rank")
        await pilot.press("escape", "h")
        await wait_for(pilot, lambda: isinstance(panel.screen, ChoiceDialog) and panel.screen.focused is not None)
        assert panel.screen.query_one(OptionList).highlighted == 1
        await pilot.press("up", "enter")
        await wait_for(pilot, lambda: "10.0.0.2" not in text(panel))
        assert panel.launch_screen.choice.plan(a_recipe()).plan.cluster is None
    assert reached == [("spark-b",)]


async def test_unreachable_host_is_reported_and_nothing_launches(reached):
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=(120, 60)) as pilot:
        await wait_for(pilot, lambda: "the CPU demo" in text(panel))
        await type_host(pilot, "-oProxyCommand=x")
        await shows(pilot, "not a host name")
        panel.screen.query_one(Input).value = "nowhere"
        await pilot.press("enter")
        await shows(pilot, "nowhere cannot be reached", "check the cable")
        await pilot.press("enter")
        await shows(pilot, "answer from nowhere yet")


@pytest.fixture
def lacking(reached, monkeypatch) -> dict[str, object]:
    """A host without this program, until `installed` says that it has it; `end` is how an installation ends."""
    state: dict[str, object] = {"installed": False, "end": None, "begun": 0}
    answer = cluster_launch.reach_hosts

    async def reach_hosts(request):
        if not state["installed"]:
            raise NeedsProgram("spark-b", "spark-b has no dflash-tui")
        return await answer(request)

    async def install_program(host):
        state["begun"] = int(str(state["begun"])) + 1
        if isinstance(state["end"], DflashError):
            raise state["end"]
        state["installed"] = True
        return "/far/program 3.12.3"

    monkeypatch.setattr(cluster_launch, "reach_hosts", reach_hosts)
    monkeypatch.setattr(far_program, "install_program", install_program)
    return state


@asynccontextmanager
async def offered(size=(120, 60)):
    """Open the panel, choose the host that lacks this program, and wait for the question."""
    panel = app({"toy": a_recipe()})
    async with panel.run_test(size=size) as pilot:
        await wait_for(pilot, lambda: "the CPU demo" in text(panel))
        await type_host(pilot, "spark-b")
        await wait_for(pilot, lambda: isinstance(panel.screen, Confirm))
        yield panel, pilot


async def test_host_without_program_gets_it_after_confirmation(lacking):
    async with offered((60, 20)) as (panel, pilot):
        await shows(pilot, "spark-b has no dflash-tui", "y  install it")
        assert lacking["begun"] == 0
        await pilot.press("y")
        await wait_for(pilot, lambda: panel.launch_screen.choice.plan(a_recipe()).plan.cluster is not None)
        assert (lacking["begun"], panel.launch_screen.hosts.installed) == (1, {"spark-b"})


async def test_declined_installation_is_not_offered_again(lacking):
    async with offered() as (panel, pilot):
        await pilot.press("escape")
        await shows(pilot, "name it again")
        assert (panel.screen, lacking["begun"]) == (panel.launch_screen, 0)


async def test_failed_installation_can_be_retried(lacking):
    lacking["end"] = DflashError("pip could not install", hint="see its index")
    async with offered() as (panel, pilot):
        await pilot.press("y")
        await shows(pilot, "pip could not install", "see its index")
        lacking["end"] = None
        await pilot.press("escape")
        await wait_for(pilot, lambda: panel.screen is panel.launch_screen)
        await pilot.press("h", "enter")
        await wait_for(pilot, lambda: isinstance(panel.screen, Confirm))
        await pilot.press("y")
        await wait_for(pilot, lambda: lacking["installed"])


async def test_launch_preparation_shows_both_hosts():
    panel, run = app(now=BASE + 20), a_pair()
    async with panel.run_test(size=(120, 36)) as pilot:
        await feed(pilot, run, [])
        for text_, host in (("here", ""), ("fetching", "spark-b")):
            panel.run_screen.view.take(Preparing(BASE - 5, Step.MODELS, text_, 0.5, host=host))
        panel.run_screen.view.draw()
        await shows(pilot, "rank 0 this machine", "rank 1 spark-b", "spark-b: fetching", "10.0.0.2 rocep1s0f1")


async def test_screen_shows_other_hosts_state_and_log(live, folders):
    now = live[1]
    run = a_pair()
    run.folder.mkdir(parents=True)
    (run.folder / "rank1.log").write_text("a line of rank 1\n")
    lost = RankSampled(now - 3, 1, "spark-b", RankState.LOST, now - 3, "nothing heard for 5 s")
    fine = replace(lost, state=RankState.RUNNING, why="", resident=5 * GIB, available=50 * GIB, total=100 * GIB)
    async with panel_on_run(live, fine, run=run, size=(80, 24)) as (panel, pilot):
        await shows(pilot, "rank 1 spark-b", "● running", "5.0 GiB", "50.0 GiB free")
        panel.run_screen.view.take(lost)
        panel.run_screen.view.draw()
        await shows(pilot, "spark-b is silent", "! lost")
        await pilot.press("l", "L")
        await shows(pilot, "a line of rank 1")
        assert "rank 1 on spark-b" in words(panel)
        await pilot.press("L")
        await shows(pilot, "server.log")


@pytest.mark.parametrize(
    ("near", "far", "rows"),
    [
        ("Socket", "IB", ("sockets on eth0 10.0.0.1", "RoCE on eth0 10.0.0.2 rocep1s0f1")),
        ("Socket", "Socket", ("sockets on eth0 10.0.0.1", "sockets, not RoCE", "eth0 10.0.0.2")),
    ],
)
async def test_link_row_shows_network_nccl_reports(live, near, far, rows):
    events, now = live
    said = LogReader(BASE, 0.0).feed(f"a:1:1 [0] NCCL INFO Using network {near}\n".encode() if near else b"")
    fine = RankSampled(now - 3, 1, "spark-b", RankState.RUNNING, now - 3, network=far)
    panel = app(now=now)
    async with panel.run_test(size=(80, 24)) as pilot:
        await feed(pilot, a_pair(), [*said, *events, fine])
        await shows(pilot, "● running", *rows)


def test_further_rank_shows_own_host_as_local():
    """Of the first rank its host knows the address alone."""
    state = RunState()
    state.apply(replace(a_pair().launched, rank=1))
    first, own = render_ranks(PAIR, state, BASE).plain.splitlines()
    assert first.split()[:4] == ["rank", "0", "10.0.0.1", "·"]
    assert own.startswith("rank 1 this machine ● running ")


def test_relaunch_shows_link_and_resolves_it_again(folders):
    """Addresses that the link had are no change of the command, and are not relied upon."""
    request = LaunchRequest(recipe="demo-cpu", peers=("spark-b",), settings={"tensor-parallel-size": "2"})
    named = planner.plan_launch(replace(request, cluster=PAIR), GpuProbe())
    run = replace(a_run(), plan=named.plan)
    again = plan_relaunch(run, LaunchChanges()).plan
    assert again.cluster == replace(PAIR, is_named=False)
    assert again.env["VLLM_HOST_IP"] == "10.0.0.1"
