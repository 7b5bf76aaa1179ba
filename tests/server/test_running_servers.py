"""A server that already runs as an arm of an A/B, against the fake engine and small real HTTP servers."""

import asyncio
from contextlib import ExitStack

import pytest
from msgspec.structs import replace

from dflash_tui.benchmark.server import ServerFacts
from dflash_tui.cli.commands import experiments
from dflash_tui.common.errors import MemoryTaken
from dflash_tui.experiments import boot, boot_server, store
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.report import Verdict
from dflash_tui.experiments.design import RunningServer
from dflash_tui.machine import processes
from dflash_tui.presentation import verdict_text
from dflash_tui.runs import server_process
from tests import DATA
from tests.support import boot_factories, command_line, fake_engine
from tests.support.command_line import Said
from tests.support.driven import read_report
from tests.support.fake_runs import free_port
from tests.support.json_lines import check_lines
from tests.support.openai_server import PAGE, OpenAIServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")
QUICK = ("--suite", str(DATA / "two-prompts.yaml"), "--yes")
SGLANG = {"/get_server_info": '{"version": "0.5.9", "tp_size": 2}'}


def run(*words: str, code: int = 0) -> Said:
    return command_line.run("ab", *words, code=code)


def vary(*arms: str) -> tuple[str, ...]:
    return ("--vary", f"url={','.join(arms)}", *QUICK)


def test_running_server_is_an_arm():
    """Its turns are one boot; it gets the named key alone, and no signal."""
    fake_engine.make(free_port(18_400))
    server = OpenAIServer(texts=SGLANG, owner="sglang")
    with server.serve() as url:
        said = run(*vary(url, fake_engine.RECIPE), "--boots", "2", "--json")
        server.asked.clear()
        assert command_line.run("bench", url)
    check_lines("ab", said.stdout.splitlines())
    design = store.find_experiment()
    report = read_report(design)
    assert (design.recipe, design.order, [arm.name for arm in design.arms]) == (
        "fake", (0, 1, 1, 0), [url, fake_engine.RECIPE],
    )  # fmt: skip
    assert [boot.run for boot in report.boots if boot.arm == 0] == ["turn-1", "turn-4"]
    assert not any(boot.error for boot in report.boots)
    [one] = report.comparisons
    assert (one.boots, one.suggestive, one.measure) == ((1, 2), True, "tok/s")
    assert one.outputs
    assert one.outputs.boots == (1, 2)
    notes = {confound.what: confound for confound in one.confounds}
    assert "2 turns at it count as one boot" in notes[f"{url} was running already and was not started again"].evidence
    assert notes["the arms name different models"].evidence.startswith("m and ")
    text = command_line.run("report", design.id).stdout
    assert "SGLang 0.5.9, model m; settings: tp_size 2" in text.replace("\\", "")
    assert "its command is unknown" in text


def test_each_start_of_a_server_is_a_boot():
    """Turns between two starts are one; a server whose process is unknown was never started again."""
    server = RunningServer("http://a", "m", ServerFacts())
    plain = boot_factories.modes()
    design = replace(plain, arms=(replace(plain.arms[0], server=server), plain.arms[1]))
    for processes_of_turns, count in ((("1 x", "1 x"), 1), (("1 x", "2 y"), 2), (("", ""), 1)):
        boots = boot_factories.boots(design, [10.0] * 4)
        boots[0], boots[3] = (
            replace(boots[n], process=process) for n, process in zip((0, 3), processes_of_turns, strict=True)
        )
        [one] = verdict.build_report(design, boots).comparisons
        assert (one.boots, one.suggestive) == ((count, 2), count == 1)
        said = [confound.what for confound in one.confounds]
        assert any("was running already" in what for what in said) is (count == 1)


def test_two_running_servers_need_no_recipe(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "private-value")
    monkeypatch.setenv("THEIRS", "sesame")
    first, second = OpenAIServer(key="sesame"), OpenAIServer(key="sesame", pieces=("Hi",) * 8)
    with first.serve() as one, second.serve() as other:
        text = run(*vary(one, other), "--key-env", "THEIRS").stdout
        design = store.find_experiment()
        again = command_line.experiment(*design.command.split()[2:])[0]
    assert design.launched == ()
    assert "suggestive" in text or "no difference shown" in text
    assert (again.vary, again.arms) == (design.vary, design.arms)
    assert {headers.get("Authorization") for _, headers, _ in first.asked + second.asked} == {"Bearer sesame"}
    assert "private-value" not in str(first.asked)
    assert "sesame" not in "".join(path.read_text() for path in store.experiment_folder(design.id).glob("*.json*"))


@pytest.mark.parametrize(
    ("server", "words", "code", "said"),
    [
        (OpenAIServer(texts={"/v1/models": PAGE}), (), 1, "is not a model server: it returned a web page"),
        (OpenAIServer(), ("--measure", "start"), 2, "a server that already runs is not started"),
    ],
)
def test_bad_address_begins_nothing(server, words, code, said):
    """It is the one sentence that `bench URL` says, which test_foreign_bench.py has of each."""
    with server.serve() as url:
        error = run(*vary(url, "http://127.0.0.1:1"), *words, code=code).stderr
    assert said in error.splitlines()[0]
    assert store.list_experiments() == []


@pytest.mark.parametrize("arms", [("http://a:1",), ("demo-cpu", "http://a:1", "fake"), ("http://a:1", "")])
def test_arms_are_urls_and_one_recipe(arms):
    assert "expected a URL and a recipe, or URLs" in run(*vary(*arms), code=2).stderr


def test_server_without_usage_refuses_a_verdict():
    with OpenAIServer(usage=False).serve() as one, OpenAIServer().serve() as other:
        run(*vary(one, other))
    report = read_report(store.find_experiment())
    assert report.comparisons[0].word is Verdict.REFUSED
    assert f"the tokens of {one} are unknown" in [each.what for each in report.comparisons[0].confounds]


def test_server_that_went_away_is_awaited(monkeypatch):
    """The A/B ends with what to do; what was measured is kept, and `resume` goes on. On a terminal it asks."""
    with OpenAIServer().serve() as other, ExitStack() as later:
        server = OpenAIServer()
        with server.serve() as url:
            port = int(url.rpartition(":")[2])
            run(*vary(url, other), "--detach")
        design = store.find_experiment()
        error = run("attach", design.id, code=1).stderr
        assert f"waits for you: start the server at {url} again, as it was" in error
        assert f"→ then dflash-tui ab resume {design.id}" in error
        asked = list[str]()

        def start_again(question: str) -> bool:
            later.enter_context(server.serve(port))
            asked.append(question)
            return True

        monkeypatch.setattr(experiments, "can_ask", lambda: True)
        monkeypatch.setattr(experiments, "ask_yes", start_again)
        run("resume", design.id)
    assert asked == [f"start the server at {url} again, as it was. Is it done?"]
    assert store.read_progress(store.experiment_folder(design.id)).finished


def test_recipe_without_room_waits_for_the_server(monkeypatch):
    """Both are measured one after the other if the memory does not hold both."""
    fake_engine.make(free_port(18_400))

    async def refuse(*_: object) -> None:
        raise MemoryTaken("it would not start", evidence="GPU memory: 20 GiB are free")

    monkeypatch.setattr(boot_server.BootServer, "launch", refuse)
    with OpenAIServer().serve() as url:
        design, [resolved] = command_line.experiment(*vary(fake_engine.RECIPE, url))
        store.create_experiment(design)
        with pytest.raises(boot.UserStepNeeded, match=f"stop the server at {url}"):
            asyncio.run(boot.run_boot(design, 0, 1, resolved, print, first=True))


def test_own_server_is_measured_at_its_url(launch):
    """A run by its address is a running server like others: it stays, and is compared in tok/s."""
    fake_engine.make(free_port(18_400), {7: ["pace=0.02"]})
    ours = launch("pace=0.02")
    wait_until(lambda: processes.is_listening_on(server_process.list_processes(ours), ours.plan.port))
    said = run(fake_engine.RECIPE, *vary(ours.url), "--model", "demo-cpu")
    assert server_process.is_alive(ours)
    report = read_report(store.find_experiment())
    [one] = report.comparisons
    assert one.suggestive
    assert one.ratio
    assert report.boots[0].generated
    step = verdict_text.format_next_step(report, replace(one, word=Verdict.NO_DIFFERENCE))
    assert "start the server at its URL again, then dflash-tui ab extend" in step
    assert "(turns at a running server are one boot: a verdict is only suggestive)" in said.stderr
