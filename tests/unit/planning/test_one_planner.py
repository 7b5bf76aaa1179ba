"""The command line and the launch screen, asked for the same, plan the same: server, GPUs and all."""

from collections.abc import Iterator
from itertools import product

import msgspec
import pytest
from _pytest.mark.structures import ParameterSet

from dflash_tui.cli.parser import build_parser
from dflash_tui.common import paths
from dflash_tui.launch import planner
from dflash_tui.machine import nvml
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import recipe_loader
from dflash_tui.planning.plan import Plan
from dflash_tui.tui.launch_selection import LaunchSelection
from tests.support.preflight_situations import a_gpu

PAIR = ("gemma-4-31b", "gb10-pair")  # a server on two GPUs: tensor-parallel-size is 2
NOT_PINNED = "the command line pins the GPU of a machine that has one, and the panel does not"
ALL_HANDED_OVER = "with tensor parallelism the command line pins as many GPUs as it takes, and the panel hands over all"
ANOTHER_CLASS = "the command line takes the first class of GPUs, the panel the GPU with the most free memory of any"


def cases() -> Iterator[ParameterSet]:
    """Every shipped recipe as it is, and the pair, on so many GPUs of each class that it knows."""
    paths_of_recipes = sorted(paths.bundled_folder("recipes").glob("[!_]*.yaml"))
    kinds = [
        (path.stem, "", list(recipe_loader.load_recipe(path).hardware) or [Hardware.H200]) for path in paths_of_recipes
    ]
    kinds.append((*PAIR, [Hardware.GB10, Hardware.H200]))
    for (name, variant, classes), count in product(kinds, (0, 1, 2, 4)):
        for hardware in classes if count else classes[:1]:
            why = ""
            if count and not recipe_loader.find_recipe(name).for_cpu:
                why = NOT_PINNED if count == 1 else ALL_HANDED_OVER if variant else ""
            marks = [pytest.mark.xfail(strict=True, raises=AssertionError, reason=why)] if why else []
            label = "-".join([name, *([variant] if variant else []), f"{count}-{hardware}" if count else "0"])
            yield pytest.param(name, variant, [a_gpu(hardware, index) for index in range(count)], id=label, marks=marks)


@pytest.fixture
def machine(monkeypatch):
    """Return a function that puts GPUs into the machine."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def has(*cards: Gpu) -> None:
        monkeypatch.setattr(nvml, "probe_gpus", lambda: GpuProbe(cards, "580.95"))

    return has


def by_command(name: str, variant: str) -> Plan:
    words = ["up", name, *(["--variant", variant] if variant else [])]
    return planner.plan_launch(build_parser().parse_args(words)).plan


def by_panel(name: str, variant: str) -> Plan:
    recipe, choice = recipe_loader.find_recipe(name), LaunchSelection()
    choice.probe = nvml.probe_visible_gpus()
    choice.changes(recipe).variant = variant
    return choice.plan(recipe)


def launch(plan: Plan) -> dict[str, object]:
    """All of a plan but the options that lead to it: the panel names a GPU that was chosen for somebody."""
    return {name: value for name, value in msgspec.structs.asdict(plan).items() if name != "asked"}


@pytest.mark.parametrize(("name", "variant", "cards"), cases())
def test_the_command_line_and_the_panel_plan_the_same(name, variant, cards, machine):
    machine(*cards)
    assert launch(by_panel(name, variant)) == launch(by_command(name, variant))


@pytest.mark.parametrize(("name", "variant", "cards"), cases())
def test_the_options_of_a_panels_plan_lead_to_it(name, variant, cards, machine):
    """A fix and an A/B start from them: a server that is launched again is on the same GPUs."""
    machine(*cards)
    plan = by_panel(name, variant)
    assert launch(planner.replan_launch(plan.asked).plan) == launch(plan)


@pytest.mark.parametrize(
    "cards",
    [
        pytest.param([a_gpu(Hardware.H200, used=100 << 30), a_gpu(Hardware.H200, 1)], id="one in use"),
        pytest.param([a_gpu(Hardware.H200), Gpu(1, trouble="lost")], id="one in trouble"),
        pytest.param([Gpu(0, trouble="lost")], id="none without trouble"),
        pytest.param(
            [a_gpu(Hardware.RTX_5090), a_gpu(Hardware.H200, 1)],
            id="two classes",
            marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason=ANOTHER_CLASS),
        ),
    ],
)
def test_both_choose_the_same_of_several_gpus(cards, machine):
    machine(*cards)
    assert launch(by_panel("gemma-4-26b-a4b", "")) == launch(by_command("gemma-4-26b-a4b", ""))
