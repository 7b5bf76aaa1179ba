"""`why` of a server that runs: by the address of any, and of what is no vLLM."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from dflash_tui.cli.main import main
from dflash_tui.diagnosis import live_server
from tests.support.openai_server import PAGE, OpenAIServer

MODEL = '{"data": [{"id": "m", "owned_by": "%s"}]}'
VLLM = {"/health": "", "/version": '{"version": "0.33.0"}', "/v1/models": MODEL % "vllm"}
DRAFTS = "".join(
    f"vllm:{name} {value}\n"
    for name, value in {
        "generation_tokens_total": 900, "prompt_tokens_total": 100, "spec_decode_num_drafts_total": 800,
        "spec_decode_num_draft_tokens_total": 5600, "num_requests_running": 0, "request_success_total": 9,
    }.items()
)  # fmt: skip


@pytest.fixture
def serve(monkeypatch) -> Iterator[Callable[[dict[str, str]], str]]:
    """Return the function that answers with these texts by path, 404 for others, and returns the address."""
    monkeypatch.setattr(live_server, "WINDOW", 0.5)
    with ExitStack() as servers:
        yield lambda answers: servers.enter_context(OpenAIServer(models=(), texts=answers).serve())


@pytest.mark.parametrize(
    ("metrics", "kind", "evidence"),
    [
        (DRAFTS + "vllm:spec_decode_num_accepted_tokens_total 3\n", "acceptance", "0.1% of 5600"),
        (DRAFTS + "vllm:spec_decode_num_accepted_tokens_total 3000\n", "none", ""),
        ('vllm:generation_tokens_total{x="} 5\nvllm:generation_tokens_total 5\nvllm:new NaN\n', "none", ""),
        ("vllm:tokens_out_total 5\n", "unknown metrics", "1 series of vLLM"),
        ("python_gc 5\n", "unknown metrics", "0 series of vLLM"),
    ],
)
def test_an_address_is_explained_as_json(serve, capsys, metrics, kind, evidence):
    """By what the server has counted since its start, also of a release that is not known."""
    assert main(["why", serve(VLLM | {"/metrics": metrics}), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["slow"]) == (kind, kind == "acceptance")
    assert evidence in " ".join(found["evidence"])


def test_slow_server_report_is_one_postable_text(serve, capsys, snapshot):
    url = serve(VLLM | {"/metrics": DRAFTS + "vllm:spec_decode_num_accepted_tokens_total 3\n"})
    assert main(["why", url, "--report"]) == 0
    assert capsys.readouterr().out == snapshot


@pytest.mark.parametrize(
    ("answers", "name", "figure"),
    [
        ({"/health": "", "/metrics": 'sglang:spec_accept_length{model_name="q"} 3.4\n'}, "SGLang", "length: 3.40"),
        ({"/health": "", "/metrics": "llamacpp:requests_deferred 2\n"}, "llama.cpp", "waiting requests: 2.00"),
        ({"/health": "", "/v1/models": MODEL % "llamacpp"}, "llama.cpp", "models: m"),
        ({"/v1/models": MODEL % "me"}, "serves models", "models: m"),
    ],
)
def test_another_server_is_named_with_its_figures(serve, capsys, answers, name, figure):
    assert main(["why", serve(answers)]) == 0
    text = capsys.readouterr().out
    assert (name in text, figure in text, "not vLLM" in text) == (True, True, True)


@pytest.mark.parametrize("answers", [{"/": PAGE}, {"/": PAGE, "/health": PAGE, "/metrics": PAGE}, {}])
def test_server_without_models_is_error(serve, capsys, answers):
    """In one sentence, without what would move the cursor."""
    assert main(["why", serve(answers)]) == 1
    error = capsys.readouterr().err
    assert re.match(r"dflash-tui: error: \S+ is not a model server: ", error)
    assert ("Router login" in error) is bool(answers)


def test_an_address_where_nothing_answers(capsys):
    assert main(["why", "http://127.0.0.1:1"]) == 1
    assert "no server answers at http://127.0.0.1:1" in capsys.readouterr().err
