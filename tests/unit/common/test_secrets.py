"""What is a secret in texts that leave the machine and in what a recipe sets, and what is not."""

import pytest

from dflash_tui.common import secrets
from dflash_tui.common.secrets import LEFT_OUT
from dflash_tui.machine import process_environment

TOKENS = [
    "hf_ABCDEFGHIJKLMNOP", "sk-ABCDEFGHIJKLMNOPQRST", "ghp_ABCDEFGHIJKLMNOPQRST", "github_pat_ABCDEFGHIJKLMNOPQRST",
    "glpat-ABCDEFGHIJKLMNOPQRST", "npm_ABCDEFGHIJKLMNOPQRST", "AKIAABCDEFGHIJKLMNOP", f"AIza{'x' * 35}",
    "nvapi-ABCDEFGHIJKLMNOPQRST", "eyJhbGciOiJI.eyJzdWIi.sig", "xoxb-ABCDEFGHIJKLMNOPQRST", "gsk_ABCDEFGHIJKLMNOPQRST",
]  # fmt: skip


def test_a_token_is_known_by_its_form():
    for token in TOKENS:
        assert secrets.looks_secret(f"https://host/{token}")
        assert secrets.redact_secrets(f"401 for {token}, next") == f"401 for {LEFT_OUT}, next"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Basic dXNlcjpwYXNz", f"Authorization: Basic {LEFT_OUT}"),
        ("Bearer opensesame==", f"Bearer {LEFT_OUT}"),
        ("https://user:pass@host/x", f"https://{LEFT_OUT}@host/x"),
        ("S3_SECRET_ACCESS_KEY=abcdef", f"S3_SECRET_ACCESS_KEY={LEFT_OUT}"),
        ("GET /x?token=abcdef1234&x=1", f"GET /x?token={LEFT_OUT}&x=1"),
        ('{"token": "abc123"}', f'{{"token": "{LEFT_OUT}"}}'),
        ("--api-key verysecret --port 1", f"--api-key {LEFT_OUT} --port 1"),
    ],
)
def test_marked_secret_is_redacted(text, expected):
    assert secrets.redact_secrets(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "'hf_token': True, 'token': None, api_key: None",
        "max_num_batched_tokens: 2048, tokens per step 7, mask_token_id=151643, 'tokenizer': 'mine'",
        "time per output token: 12.5, 3.1 per token: 12.5ms, prompt_token_ids: [1, 2]",
        "--tokenizer mine --max-num-batched-tokens 4096 --api-key --port 1",
        "http://127.0.0.1:8000/v1/models GET /metrics mail@host",
        "Avg generation throughput: 40.0 tokens/s, GPU KV cache usage: 0.1%",
    ],
)
def test_what_is_no_secret_stays(text):
    assert secrets.redact_secrets(text) == text


def test_values_of_our_environment_are_left_out(monkeypatch, folders):
    """And the token of `hf auth login`; a short value stands in any text."""
    monkeypatch.setenv("MY_API_KEY", "correct horse battery")
    monkeypatch.setenv("DB_PASSWORD", "true")
    token = folders / "cache" / "huggingface" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("token-of-a-mirror\n")
    said = secrets.redact_secrets("correct horse battery, token-of-a-mirror, true")
    assert said == f"{LEFT_OUT}, {LEFT_OUT}, true"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True), ("--ssl-keyfile-password", True), ("S3_SECRET", True), ("apiKey", True),
        ("max_tokens", False), ("TOKENIZERS_PARALLELISM", False), ("eos_token", False), ("MONKEY", False),
    ],
)  # fmt: skip
def test_secret_is_recognised_by_name(name, secret):
    assert secrets.is_secret(name) is secret


def test_command_and_variables_are_redacted():
    argv = ["vllm", "serve", "--api-key", "abc", "--port", "8000"]
    assert secrets.redact_argv(argv) == ("vllm", "serve", "--api-key", LEFT_OUT, "--port", "8000")
    assert secrets.redact_variables({"MY_KEY": "x", "A": "1"}) == {"MY_KEY": LEFT_OUT, "A": "1"}


@pytest.mark.parametrize(
    ("name", "value", "place"),
    [
        ("flags.api-key", "abcdefgh", "flags.api-key"),
        ("flags.x", '{"a": [{"auth_token": "abcdefgh"}]}', "flags.x.a.auth_token"),
        ("env.HARMLESS", TOKENS[0], "env.HARMLESS"),
        ("flags.hf-token", True, None),
        ("flags.max-num-batched-tokens", 4096, None),
        ("flags.compilation-config", '{"mode": 3}', None),
    ],
)
def test_a_secret_in_a_setting_is_found(name, value, place):
    assert secrets.find_secret(name, value) == place


def test_prompts_are_left_out_of_log_lines():
    said = "before\nReceived request a: prompt: 'PRIVATE', output: 'PRIVATE'\nafter"
    assert secrets.redact_prompts(said) == f"before\nReceived request a: {LEFT_OUT}\nafter"
    debug = "DEBUG 11-27 08:30:00 [tool_parsers/phi4mini_tool_parser.py:58] "
    assert secrets.redact_prompts(f"{debug}Model output: PRIVATE") == f"{debug}{LEFT_OUT}"
    refused = "string_type, input_value={'messages': 'PRIV...ATE'}, input_type=dict]"
    assert secrets.redact_prompts(refused) == f"string_type, input_value={LEFT_OUT}, input_type=dict]"


def test_helper_environment_excludes_secret_variables(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.setenv("UV_INDEX_OURS_PASSWORD", "x")
    env = process_environment.build_helper_environment(*process_environment.PACKAGE_INDEXES)
    assert "OPENAI_API_KEY" not in env
    assert "UV_INDEX_OURS_PASSWORD" in env
