"""`bench` against a stand-in for the server."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from unittest import mock

import msgspec
import pytest

from dflash_tui.benchmark import client, summary
from dflash_tui.benchmark.prompts import Prompt, Sampling, build_suite
from dflash_tui.benchmark.server import Server
from dflash_tui.cli import console
from dflash_tui.cli.commands import bench
from dflash_tui.cli.main import main
from dflash_tui.cli.parser import build_parser
from dflash_tui.events import FILLER, Counters, RequestDone, decode_recorded
from dflash_tui.machine import nvml
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.machine.hardware import Hardware
from dflash_tui.runs.run import Run
from tests import ROOT
from tests.server.faults.test_file_faults import ended
from tests.support import command_line
from tests.support.fake_runs import free_port, wait_for_answer
from tests.tui.conftest import a_run

FAKE = ROOT / "tests" / "support" / "fake_server.py"
SUITE = build_suite("two", (Prompt("a", "first", 20), Prompt("b", "second", 40)))
FREE = Sampling(temperature=None, fixed=False)


@pytest.fixture
def run(folders) -> Run:
    made = a_run(port=free_port(18_400))
    made.folder.mkdir(parents=True)
    return made


@pytest.mark.usefixtures("folders")
def test_bench_without_server_names_command_to_run(launch, capsys):
    """Where one runs, the command that lists it."""
    past, commands = ended(), []
    for step in (lambda: None, launch):
        step()
        assert main(["bench", past.id]) == 2
        commands += re.findall(r"dflash-tui \w+", capsys.readouterr().err)
    assert commands == ["dflash-tui up", "dflash-tui ps"]


@pytest.fixture
def serving(run) -> Iterator[Run]:
    """The run with a server behind it."""
    yield from _serve(run)


@pytest.fixture
def serving_slowly(run) -> Iterator[Run]:
    """The same, with answers that take long beside the time between two requests."""
    yield from _serve(run, "slow=1")


def _serve(run: Run, *words: str) -> Iterator[Run]:
    process = subprocess.Popen([sys.executable, FAKE, str(run.plan.port), *words], stdout=subprocess.DEVNULL)
    wait_for_answer(run.url)
    yield run
    process.kill()
    process.wait()


async def test_levels_are_measured_one_after_the_other(serving_slowly, capfd, snapshot):
    """As many requests at a time as the level says, each streams twice; then the levels beside each other."""
    await bench.run_bench(bench.Bench(Server.from_run(serving_slowly), SUITE, FREE, levels=(1, 3)))
    shown = capfd.readouterr().out
    assert "\n1 at a time\n" in shown
    assert "2 requests, 60 tokens in " in shown
    assert "6 requests, 180 tokens in " in shown
    assert "MEDIAN OF" in shown
    levels = shown.splitlines()[-3:]
    assert [line.split()[:2] for line in levels[:2]] == [["1", "2"], ["3", "6"]]
    assert levels[2] == snapshot
    assert max(map(len, shown.splitlines())) <= 80
    events = [json.loads(line) for line in serving_slowly.samples.read_text().splitlines()]
    assert [event.get("streams", 1) for event in events if event["kind"] != FILLER] == [1] * 2 + [3] * 6
    (under_way,) = re.findall(r"3 at a time: (\d\.\d) under way", shown)
    assert float(under_way) > 2.7
    rows = [line.split() for line in shown.splitlines() if line.startswith("all ")]
    assert [row[1:3] for row in rows if row[1] == "E2E"] == [["E2E", "2"], ["E2E", "6"]]


async def test_a_warm_up_does_not_count(serving, capfd):
    """Neither what is summed up nor what is recorded has it; the server was sent it, with texts of its own."""
    sent = list[tuple[int, int]]()

    def send(*words, **how):
        sent.append((words[2].seed, how["rounds"]))
        return client.send_suite(*words, **how)

    with mock.patch.object(bench, "client", mock.Mock(wraps=client, send_suite=send)):
        console.use_json(True)
        await bench.run_bench(bench.Bench(Server.from_run(serving), SUITE, FREE, rounds=3, warm_up=2))
    measured = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert measured["requests"] == 6
    assert [rounds for _, rounds in sent] == [2, 3]
    assert sent[0][0] != sent[1][0] == FREE.seed
    assert len([line for line in serving.samples.read_text().splitlines() if FILLER not in line]) == 6
    args = build_parser().parse_args(["bench", "--warm-up", "2"])
    assert (args.warm_up, build_parser().parse_args(["bench"]).warm_up) == (2, 0)


async def test_rate_load_reports_its_goodput(serving, capfd):
    """Requests arrive forty times a second, whatever is under way; what is asked of them is in the summary."""
    load = bench.Bench(
        Server.from_run(serving), SUITE, FREE, rounds=5, rate=40.0, slo=summary.parse_slo("ttft=60,e2e=1e-6")
    )
    console.use_json(True)
    await bench.run_bench(load._replace(slo=summary.parse_slo("e2e=1000000")))
    measured = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (measured["streams"], measured["window"]["rate"], measured["requests"]) == (0, 40.0, 10)
    assert (measured["goodput"]["met"], measured["goodput"]["n"]) == (10, 10)
    assert {kind: one["e2e"]["n"] for kind, one in measured["latency"].items()} == {"a": 5, "b": 5, "": 10}
    console.use_json(False)
    await bench.run_bench(load)
    shown = capfd.readouterr().out
    assert re.findall(r"(\d+) of (\d+) within", shown) == [("0", "10")]
    events = map(decode_recorded, (serving.folder / "samples.jsonl").read_bytes().splitlines())
    recorded = [event for event in events if isinstance(event, RequestDone)]
    assert {(done.streams, done.rate) for done in recorded} == {(0, 40.0)}  # a later report says at which rate
    assert max(map(len, shown.splitlines())) <= 80


async def test_steps_are_compared_with_memory(serving, capfd, tmp_path):
    """By the headers of the files of the models; without files nothing is said."""
    header = {"__metadata__": {"format": "pt"}, "lm_head.weight": {"dtype": "BF16", "data_offsets": [0, 425_000_000]}}
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    shape = {"num_hidden_layers": 1, "num_key_value_heads": 1, "head_dim": 1}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    plan = msgspec.structs.replace(serving.plan, hardware=Hardware.H200, drafter="", num_speculative_tokens=0)
    seen = []
    for target in (str(tmp_path), "models/missing"):
        run = msgspec.structs.replace(serving, plan=msgspec.structs.replace(plan, target=target))
        compared = bench.Bench(Server.from_run(run), SUITE, FREE, limit=True)
        console.use_json(False)
        await bench.run_bench(compared)
        shown = " ".join(capfd.readouterr().out.split())
        console.use_json(True)
        await bench.run_bench(compared)
        seen.append((shown, json.loads(capfd.readouterr().out.splitlines()[-1])["memory_limit"]))
    (shown, told), (shown_without, told_without) = seen
    assert [round(step["least_seconds"], 4) for step in told["kinds"].values()] == [0.0001, 0.0001]
    assert re.search(r"memory allows: a 0\.\d\d \(0\.10 of \d+\.\d\d ms\), b .* over 4\.25 TB/s \(measured by", shown)
    assert told_without["unknown"] == ["the weights of models/missing, which has no safetensors files here", "KV cache"]
    assert "memory allows: unknown, without the weights of models/missing" in shown_without


async def test_fewer_drafts_are_forecast_from_history(serving, capfd):
    """By the acceptance of the bench and the steps of an earlier run with fewer drafts; first without such a run."""
    shares = (0.5, 0.2, 0.1, *[0.01] * (serving.plan.num_speculative_tokens - 3))
    none = Counters(0.0, 0.0, 0.0, 0.0, 0.0, tuple(0.0 for _ in shares))
    some = Counters(1e3, 0.0, 500.0, 3500.0, 500 * sum(shares), tuple(500 * share for share in shares))
    command = bench.Bench(Server.from_run(serving), SUITE, FREE, dataset="mine.jsonl")
    told, shown = [], []
    for _ in range(2):
        counters = mock.AsyncMock(side_effect=[none, some, none, some])
        with mock.patch.object(bench, "client", mock.Mock(wraps=client, read_counters=counters)):
            console.use_json(True)
            await bench.run_bench(command)
            told.append(json.loads(capfd.readouterr().out.splitlines()[-1])["fewer_drafts"])
            console.use_json(False)
            await bench.run_bench(command)
            shown.append(" ".join(capfd.readouterr().out.split()))
        plan = msgspec.structs.replace(serving.plan, num_speculative_tokens=3, port=1)
        earlier = msgspec.structs.replace(serving, id=f"{serving.id}-3", plan=plan)
        earlier.folder.mkdir(exist_ok=True)
        (earlier.folder / "run.json").write_bytes(msgspec.json.encode(earlier))
        done = [event for line in serving.samples.read_bytes().splitlines() if (event := decode_recorded(line))]
        for request in done:  # far shorter steps
            assert isinstance(request, RequestDone)
            earlier.record(msgspec.structs.replace(request, decode_tok_s=1e6))
    first, second = told
    assert (first["tokens"], first["step_ratio"]) == (3, None)
    assert first["command"].startswith("dflash-tui tune ")
    assert (second["tokens"], second["runs"]) == (3, [f"{serving.id}-3"])
    assert 0 < second["step_ratio"] < 0.1
    words = "--profile stock --mode eager --vary n=7,3 --dataset mine.jsonl"
    assert second["command"] == f"dflash-tui ab {serving.plan.recipe} {words}"
    assert "n=3 would have acceptance length 1.80 instead of 1.84; its steps were not measured here: dfl" in shown[0]
    assert re.search(
        r"n=3 would give about \S+ times the tok/s: acceptance length 1\.80 instead of 1\.84, ste", shown[1]
    )
    assert build_parser().parse_args(first["command"].split()[1:]).axes == ["n=7,3"]


def test_the_options_of_the_command_are_checked(capsys):
    parser = build_parser()
    args = parser.parse_args(["bench", "--concurrency", "1,2,8", "--suite", "field", "--seed", "3"])
    assert (args.concurrency, args.suite, args.seed) == ((1, 2, 8), "field", 3)
    for words in (
        ["--concurrency", "0"],
        ["--concurrency", "1,"],
        ["--seed", "-1"],
        ["--temperature", "nan"],
        ["--top-p", "0"],
    ):
        with pytest.raises(SystemExit):
            parser.parse_args(["bench", *words])
    assert "from 1 to 1024, not '0'" in capsys.readouterr().err


def test_requests_carry_sampling_only_if_set():
    bodies = [
        client._build_measured_body(
            Server("", "toy"), SUITE.prompts[0], 0, Sampling(temperature=0.6, top_p=share, top_k=most)
        )
        for share, most in ((0.95, 20), (None, None))
    ]
    assert [(body.get("top_p"), body.get("top_k")) for body in bodies] == [(0.95, 20), (None, None)]


LAPTOP = "gemma-4-26b-a4b", "--gpu", "rtx-5090-laptop", "--profile"


def test_bench_samples_like_published_figures(monkeypatch):
    """Where the figures are of the same launch, and the user asked for nothing else."""
    monkeypatch.setattr(nvml, "probe_gpus", GpuProbe)
    seed, stock = (command_line.planned(*LAPTOP, profile).plan for profile in ("seed", "stock"))
    words = Sampling.from_plan(seed).words
    assert words.startswith("temperature 0.6, top-p 0.95, as published (airelien.dev")
    assert Sampling.from_plan(stock).words == "the model's own"
    assert Sampling(temperature=1.0).as_published(seed.expected).words == "temperature 1"


async def test_the_report_names_the_sampling(serving, capfd):
    serving = msgspec.structs.replace(
        serving, plan=msgspec.structs.replace(serving.plan, argv=(*serving.plan.argv, "--chat-template", "t.jinja"))
    )
    await bench.run_bench(bench.Bench(Server.from_run(serving), SUITE, Sampling(0.5, temperature=0.6, top_k=20)))
    named = r"(?mi)^(?:- )?sampling: .*\b0\.6.*\b20\b.*\bt\.jinja\.?$"
    assert re.search(named, capfd.readouterr().out)
    (serving.folder / "run.json").write_bytes(msgspec.json.encode(serving))
    serving.log.touch()
    assert main(["report", serving.id]) == 0
    assert re.search(named, capfd.readouterr().out)
