"""`bench`, `verify` and `chat` of a server by its address, against small real HTTP servers."""

import io
import json
import ssl
import subprocess
import sys
from typing import Any

import pytest

from dflash_tui.benchmark import client
from dflash_tui.cli import requests
from dflash_tui.cli.main import main
from tests.support.json_lines import check_lines
from tests.support.openai_server import PAGE, OpenAIServer

pytestmark = pytest.mark.usefixtures("folders")
VLLM = {
    "/version": '{"version": "0.33.0"}',
    "/metrics": 'vllm:generation_tokens_total 5\nvllm:cache_config_info{cache_dtype="fp8",block_size="16"} 1\n',
}
SGLANG = {
    "/metrics": 'sglang:gen_throughput{model_name="q"} 3.4\n',
    "/get_server_info": '{"version": "0.5.9", "tp_size": 2, "speculative_algorithm": "DFLASH", "api_key": "hidden"}',
}
LLAMA = {"/props": '{"build_info": "b7000", "default_generation_settings": {"n_ctx": 4096}}'}


def measured(capfd, *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first and the last line of `bench URL --json`: what the server tells, and the summary."""
    assert main(["bench", *words, "--json"]) == 0
    lines = capfd.readouterr().out.splitlines()
    check_lines("bench", lines)
    return json.loads(lines[0]), json.loads(lines[-1])


@pytest.mark.parametrize(
    ("texts", "owner", "engine", "settings"),
    [
        (VLLM, "vllm", "vLLM 0.33.0", {"cache_dtype": "fp8", "block_size": "16", "speculation": "off"}),
        (SGLANG, "sglang", "SGLang 0.5.9", {"tp_size": "2", "speculative_algorithm": "DFLASH"}),
        (LLAMA, "llamacpp", "llama.cpp b7000", {"n_ctx": "4096"}),
        ({}, "me", " ", {}),
    ],
)
def test_bench_names_the_engine_and_settings(capfd, texts, owner, engine, settings):
    with OpenAIServer(texts=texts, owner=owner).serve() as url:
        seen, summary = measured(capfd, url)
        assert main(["bench", url]) == 0
    facts = seen["facts"]
    assert (f"{facts['engine']} {facts['version']}", facts["settings"]) == (engine, settings)
    assert (summary["run"], summary["requests"], summary["tokens"]) == (url, 5, 40)
    assert (summary["acceptance"], summary["token_count"]) == (None, "usage")
    text = capfd.readouterr().out
    assert (engine.strip() or "an unknown engine") in text
    assert ("settings: unknown" in text) is not bool(settings)


def test_llama_cpp_timings_give_acceptance_length(capfd):
    timings = {"timings": {"predicted_n": 8, "draft_n": 9, "draft_n_accepted": 5}}
    with OpenAIServer(texts=LLAMA, owner="llamacpp", last=timings).serve() as url:
        _, summary = measured(capfd, url)
        assert main(["bench", url]) == 0
    assert (summary["steps"], summary["acceptance_length"]) == (10, 3.5)
    assert "acceptance length 3.50 with the bonus token, over 10 steps" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("tokenizes", "count", "tokens", "words"),
    [(True, "tokenize", 6, "server's /tokenize"), (False, "chunks", 4, "chunks of the stream, not tokens")],
)
def test_tokens_without_usage_are_counted_otherwise(capfd, tokenizes, count, tokens, words):
    with OpenAIServer(usage=False, tokenizes=tokenizes).serve() as url:
        seen, summary = measured(capfd, url)
        assert main(["bench", url]) == 0
    assert (seen["facts"]["tokens"], summary["token_count"], summary["tokens"]) == (count, count, 5 * tokens)
    text = capfd.readouterr().out
    assert text.count(words) == 2
    assert (" chunks/s" in text, " tokens in " in text) == (not tokenizes, tokenizes)


@pytest.mark.parametrize(
    ("server", "found", "words"),
    [
        (OpenAIServer(tokenizes=True), "different", ""),
        (OpenAIServer(tokenizes=True, vocabulary=True), "random", "prompts of random tokens"),
        (OpenAIServer(tokenizes=True, vocabulary=True, detokenizes=False), "repeated", "the prompts' tokens repeat"),
        (OpenAIServer(), "unknown", "unknown whether the prompts' tokens differ"),
    ],
)
def test_prompts_have_different_tokens(capfd, server, found, words):
    with server.serve() as url:
        _, summary = measured(capfd, url, "--suite", "contexts:1k")
        assert main(["bench", url, "--suite", "contexts:1k"]) == 0
    assert summary["token_variety"] == found
    text = capfd.readouterr().out
    assert words in text
    assert ("prompts of" in text or "the prompts' tokens" in text) == bool(words)
    sent = [body["messages"][0]["content"].partition("] ")[2] for body in server.bodies]
    first, second = (text for text in sent if len(text) > 1_000)
    assert first == second  # in both benches
    assert first.startswith("Entry 1: ") == (found != "random")
    assert found != "random" or len({*first.split()}) > 700


def test_other_suites_are_sent_as_written(capfd):
    server = OpenAIServer(tokenizes=True, vocabulary=True)
    with server.serve() as url:
        _, summary = measured(capfd, url, "--suite", "quick")
    assert summary["token_variety"] == ""
    assert "/detokenize" not in [path for path, _, _ in server.asked]


@pytest.mark.parametrize(
    ("refused", "left"),
    [(("cache_salt",), {"stream_options"}), (("include_usage", "ignore_eos"), set())],
)
def test_fields_that_it_refuses_are_left_out(capfd, refused, left):
    """The vLLM fields first, then those of the usage."""
    server = OpenAIServer(refused=refused)
    with server.serve() as url:
        measured(capfd, url, "--top-p", "0.9", "--top-k", "20")
    last = server.bodies[-1]
    assert last.keys() == {"model", "messages", "max_tokens", "stream", "seed", "top_p"} | left


def test_only_the_named_key_is_sent(capfd, monkeypatch):
    """The keys of runs, of `attach` and of the hub stay here."""
    for name in ("VLLM_API_KEY", "DFLASH_TUI_API_KEY", "HF_TOKEN", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "private-value")
    monkeypatch.setenv("OTHER", "sesame")
    server = OpenAIServer(key="sesame")
    with server.serve() as url:
        assert main(["bench", url]) == 2
        error = capfd.readouterr().err
        assert f"error: {url} requires an API key\n" in error
        assert "--key-env NAME" in error
        assert main(["bench", url, "--key-env", "HF_TOKEN"]) == 2
        assert "refuses the key in HF_TOKEN" in capfd.readouterr().err
        assert main(["bench", url, "--key-env", "UNSET"]) == 2
        assert "UNSET does not hold a valid API key" in capfd.readouterr().err
        server.asked.clear()
        measured(capfd, url, "--key-env", "OTHER")
    assert "private-value" not in str(server.asked)
    assert {headers["Authorization"] for _, headers, _ in server.asked} == {"Bearer sesame"}
    assert main(["bench", "--key-env", "OTHER"]) == 2


@pytest.mark.parametrize(
    ("server", "code", "words"),
    [
        (OpenAIServer(texts={"/v1/models": PAGE}), 1, "is not a model server: it returned a web page, “Router login”"),
        (OpenAIServer(texts={"/v1/models": "{}"}), 1, "is not a model server: it returned no list of models"),
        (OpenAIServer(models=("a", "b")), 2, "serves 2 models"),
        (OpenAIServer(pieces=(), usage=False), 6, "does not answer a chat with m"),
        (OpenAIServer(refused=("model",)), 6, "does not answer a chat with m"),
    ],
)
def test_a_bad_address_is_one_sentence(capfd, server, code, words):
    with server.serve() as url:
        assert main(["bench", url]) == code
        error = capfd.readouterr().err
    assert words in error.splitlines()[0]
    assert "\x1b" not in error
    assert "Traceback" not in error


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://key@127.0.0.1:1", "http://"])
def test_address_without_server_is_one_sentence(capfd, url):
    assert main(["bench", url]) in {1, 2}
    assert "Traceback" not in capfd.readouterr().err


def test_a_model_can_be_named(capfd):
    server = OpenAIServer(models=("a", "b"))
    with server.serve() as url:
        measured(capfd, f"{url}/v1", "--model", "b")
    assert {body["model"] for body in server.bodies} == {"b"}


def test_another_model_in_its_answers_is_named(capfd):
    with OpenAIServer(answers_as=("other",)).serve() as url:
        assert main(["bench", url]) == 0
    assert "it answers as other, not as m" in capfd.readouterr().out


def test_a_change_of_model_between_answers_fails(capfd):
    with OpenAIServer(answers_as=("m", "m", "other")).serve() as url:
        assert main(["bench", url]) == 0
        text = capfd.readouterr().out
    assert text.count("failed: the server changed its model: it answers as other, and answered before as m") == 4
    assert "4 failed" in text


def test_an_own_certificate_is_one_sentence(capfd, tmp_path):
    """The error says how to reach the server without it."""
    files = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = f"req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout {files[0]} -out {files[1]}"
    subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files[1], files[0])
    with OpenAIServer(tls=context).serve() as url:
        assert main(["bench", url]) == 1
    assert "is self-signed or of an unknown authority: connect by http over ssh -L" in capfd.readouterr().err


def test_slow_server_is_reported(capfd, monkeypatch):
    """Then it is waited for, up to ten minutes; in the end it is one sentence."""
    monkeypatch.setattr(requests, "_SLOW", 0.05)
    monkeypatch.setattr(client, "_READING", 0.3)
    with OpenAIServer(slow=1.0).serve() as url:
        assert main(["bench", url]) == 6
    error = capfd.readouterr().err
    assert f"{url} has not answered within 0 s; still waiting" in error
    assert "no answer within 0.3 s" in error


def test_chat_talks_with_an_address(capfd, monkeypatch):
    server = OpenAIServer(answers_as=("m", "m", "other"))
    with server.serve() as url:
        monkeypatch.setattr(sys, "stdin", io.StringIO("hi\nagain\n"))
        assert main(["chat", url]) == 6
    shown = capfd.readouterr()
    assert shown.out.startswith("Hello there, this is an answer.\n")
    assert "the server changed its model" in shown.err
    assert [len(body["messages"]) for body in server.bodies] == [1, 1, 3]


def test_verify_checks_an_address(capfd):
    """What the server does not tell is skipped; nothing is kept."""
    with OpenAIServer(refused=("tools",)).serve() as url:
        assert main(["verify", url, "--json"]) == 1
        out = capfd.readouterr().out
        assert main(["verify", url, "--lossless"]) == 2
    check_lines("verify", [out.splitlines()[0]])
    checks = {check["name"]: check["result"] for check in json.loads(out.splitlines()[0])["checks"]}
    assert checks == {
        "answers": "passed",
        "streams": "passed",
        "tool call": "skipped",
        "reasoning": "skipped",
        "long context": "failed",
        "acceptance": "skipped",
    }
