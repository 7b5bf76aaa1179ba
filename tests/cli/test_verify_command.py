"""`verify` with the stand-in for a server: each check passes, fails or is skipped for its reason, and is kept."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from dflash_tui.benchmark import chat
from dflash_tui.benchmark.chat import Turn
from dflash_tui.benchmark.server import Server
from dflash_tui.cli.main import main
from dflash_tui.common import paths
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.resolution import ExpectedFigures
from dflash_tui.runs import lifecycle, registry, server_process, verification
from dflash_tui.runs.run import Run
from dflash_tui.runs.verification import Verification
from dflash_tui.tui.launch_selection import LaunchSelection, Suitability, SuitabilityReason
from dflash_tui.tui.render.plan import render_plan
from tests.support import fake_engine
from tests.support.fake_runs import free_port, made, wait_for_answer
from tests.support.json_lines import check_lines
from tests.tui.conftest import a_recipe, a_run

PARSERS = ("--tool-call-parser", "x", "--reasoning-parser", "x")
ABLE = ("calls", "thinks=Well|then", "adds=heliotrope-4711", *PARSERS)
NAMES = ["answers", "streams", "tool call", "reasoning", "long context", "acceptance", "output"]
Serve = Callable[..., Run]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Launch the stand-in as a server of real weights, or of what the plan is changed to."""
    runs = []

    def start(*words: str, **changes: Any) -> Run:
        plan = replace(made(free_port(18_400), *words), **{"synthetic": "", "expected": (), **changes})
        runs.append(lifecycle.launch_server(plan, engine="fake"))
        wait_for_answer(runs[-1].url)
        return runs[-1]

    yield start
    for run in runs:
        asyncio.run(lifecycle.stop_server(run, grace=0.1))


def verified(capfd, *words: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Return the exit code of `verify --json`, and the checks by name."""
    code = main(["verify", *words, "--json"])
    line = capfd.readouterr().out.splitlines()[0]
    check_lines("verify", [line])
    return code, {check["name"]: (check["result"], check["detail"]) for check in json.loads(line)["checks"]}


@pytest.mark.parametrize(("late", "result"), [(1, "passed"), (2, "failed")])
def test_unstreamed_answer_is_requested_once_more(serve, capfd, monkeypatch, late, result):
    """A busy machine may read a short answer at once; what never streams fails."""
    ask, asked = chat._ask, []

    async def ask_late(server: Server, text: str, **more: Any) -> Turn:
        turn = await ask(server, text, **more)
        asked.append(text)
        return replace(turn, request=replace(turn.request, chunk_p50=None)) if len(asked) <= late else turn

    monkeypatch.setattr(chat, "_ask", ask_late)
    _, checks = verified(capfd, serve(*ABLE).plan.recipe)
    assert (checks["streams"][0], asked[0]) == (result, asked[1])


def test_fully_capable_pair_passes_verify(serve, capfd):
    """It is kept, and said in the plan; what takes boots of its own is not done beside a server."""
    run = serve(*ABLE)
    code, checks = verified(capfd, run.plan.recipe)
    assert code == 0
    assert [*checks] == NAMES
    assert [result for result, _ in checks.values()] == ["passed"] * 6 + ["skipped"]
    assert checks["tool call"][1] == 'get_weather({"city": "Paris"})'
    assert run.id in checks["output"][1]
    seen = verification.list_verifications()["demo-cpu"]
    assert (seen.run, seen.vllm, seen.failed) == (run.id, run.plan.vllm, ())
    plan = LaunchSelection().plan(a_recipe())
    shown = render_plan(plan, SuitabilityReason(Suitability.YES, ""), verified=seen, width=200).plain
    assert verification.format_badge(seen) in shown


def test_unsupported_feature_is_named(serve, capfd):
    """A model that calls nothing, thinks in its answer, and finds nothing; the badge is gone."""
    run = serve("adds=<think>", *PARSERS)
    code, checks = verified(capfd, run.id, "--without-output")
    assert code == 1
    results = {name: result for name, (result, _) in checks.items()}
    failed = {name for name, result in results.items() if result == "failed"}
    assert (
        failed == {"tool call", "reasoning", "long context"} == {*verification.list_verifications()["demo-cpu"].failed}
    )


def test_toy_weights_skip_checks_they_cannot_pass(serve, capfd):
    """They have to answer a long prompt, not to find something in it."""
    serve(*PARSERS, synthetic="hand-made toy weights")
    code, checks = verified(capfd, "demo-cpu")
    assert code == 0
    assert [result for result, _ in checks.values()] == ["passed"] * 2 + ["skipped"] * 2 + ["passed"] * 2 + ["skipped"]


def test_verify_refuses_unknown_recipe_or_run(capfd):
    assert main(["verify", "nothing-of-that-name"]) == 2


BAND = ExpectedFigures(source="someone", acceptance_length=(3.0, 4.0))
PLAN = replace(a_run().plan, synthetic="")


@pytest.mark.parametrize(
    ("plan", "length", "result"),
    [
        (replace(PLAN, expected=(BAND,)), 2.6, "passed"),
        (replace(PLAN, expected=(BAND,)), 2.4, "failed"),
        (replace(PLAN, expected=(replace(BAND, set_up="eager, gb10"),)), 2.4, "skipped"),
        (PLAN, 1.0, "failed"),
    ],
)
def test_acceptance_is_compared_with_published_length(plan: Plan, length: float | None, result: str):
    assert chat._judge_acceptance(plan, length).result == result


def test_unreadable_verification_record_gives_no_badge():
    verification.record_verification(Verification("good", 1.0, "0.32.0", "gb10", "run"))
    folder = paths.verifications_folder()
    (folder / "bad.json").write_text("{")
    (folder / "other.json").write_bytes((folder / "good.json").read_bytes())
    assert [*verification.list_verifications()] == ["good"]


def test_a_recipe_is_launched_and_stopped_again(capfd):
    """Where no server of it runs; nothing of the launch is on stdout."""
    fake_engine.make(free_port(18_700))
    code, checks = verified(capfd, "fake", "--without-output")
    assert (code, checks["output"][0]) == (0, "skipped"), checks
    [run] = registry.list_runs()
    assert verification.list_verifications()["fake"].run == run.id
    assert not server_process.is_alive(run)


@pytest.mark.long
def test_lossless_verify_compares_answers_without_speculation(capfd):
    """By `verify --lossless`, after the server that was checked has ended; the table alone is on stdout."""
    fake_engine.make(free_port(18_800))
    code, checks = verified(capfd, "fake")
    assert (code, checks["output"][0]) == (0, "passed"), checks


def test_answers_are_not_compared_beside_other_server(serve, capfd):
    """It would disturb the boots that this takes, which is no failure of the pair."""
    other = serve(recipe="other")
    fake_engine.make(free_port(18_900))
    code, checks = verified(capfd, "fake")
    result, why = checks["output"]
    assert (code, result, other.id in why) == (0, "skipped", True), checks
