"""What is secret in texts that leave the machine, and what is not."""

import pytest

from dflash_tui.common import redaction


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'api_key': ['k1secret', 'k2secret'], 'port': 8000", "'api_key': [left out], 'port': 8000"),
        ("api_key=['a-b-c', \"second-key\"] x", "api_key=[left out] x"),
        ("'token': 'abc123 secret', 'a': 1", "'token': [left out]', 'a': 1"),
        ('{"token": "abc123"}', '{"token": [left out]"}'),
        (r'{\"token\": \"abc123\"}', r'{\"token\": [left out]\"}'),
        ("wandb_api_key: 'abc'", "wandb_api_key: [left out]'"),
        ("GET /x?token=abcdef1234&x=1", "GET /x?token=[left out]&x=1"),
        ("GET /x?a=1&sig=abc%3D HTTP", "GET /x?a=1&sig=[left out] HTTP"),
        ("X-Amz-Signature=abcdef0123456789", "X-Amz-Signature=[left out]"),
        ("&X-Amz-Credential=AK/2026&X-Amz-Security-Token=x",
         "&X-Amz-Credential=[left out]&X-Amz-Security-Token=[left out]"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic [left out]"),
        ("(b'authorization', b'Bearer short')", "(b'authorization', b'Bearer [left out]')"),
        ("'authorization': 'k1'", "'authorization': '[left out]'"),
        ("Bearer opensesame==", "Bearer [left out]"),
        ("S3_SECRET_ACCESS_KEY=abcdef", "S3_SECRET_ACCESS_KEY=[left out]"),
        ("AWS_ACCESS_KEY_ID=abcdef", "AWS_ACCESS_KEY_ID=[left out]"),
        ("AWS2_KEY='abcdef'", "AWS2_KEY=[left out]'"),
        ("HUGGING_FACE_HUB_TOKEN: xyz", "HUGGING_FACE_HUB_TOKEN: [left out]"),
        ("'password': 123456", "'password': [left out]"),
        ("password=hunter22", "password=[left out]"),
        ("x-api-key: 12ab", "x-api-key: [left out]"),
        ("https://user:pass@host/x", "https://[left out]@host/x"),
        ("https://user:p@ss@host/x", "https://[left out]@host/x"),
        ("--api-key verysecret --port 1", "--api-key [left out] --port 1"),
        ("'--hf-token', 'abc', '--port'", "'--hf-token', '[left out]', '--port'"),
        ("--hf-token=abc", "--hf-token=[left out]"),
        ("hf_ABCDEFGHIJKLMNOP", "[left out]"),
        ("eyJhbGciOiJI.eyJzdWIi.sig", "[left out]"),
    ],
)  # fmt: skip
def test_a_secret_is_left_out(text, expected):
    """Wherever a log, a command or an address holds a secret, it goes and what is around it stays."""
    assert redaction.redact_secrets(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "'hf_token': True, 'token': None, api_key: None, \"token\": null",
        "max_num_batched_tokens: 2048, tokens per step 7, mask_token_id=151643, 'tokenizer': 'mine'",
        "time per output token: 12.5, 3.1 per token: 12.5ms, prompt_token_ids: [1, 2]",
        "--tokenizer mine --max-num-batched-tokens 4096 --api-key --port 1",
        "hf_overrides={}, hf_config_path_of_mine, KeyError: 'x', cache key abc",
        "http://127.0.0.1:8000/v1/models GET /metrics mail@host",
        "Avg generation throughput: 40.0 tokens/s, GPU KV cache usage: 0.1%",
    ],
)
def test_what_is_no_secret_stays(text):
    """A log without its figures would help nobody."""
    assert redaction.redact_secrets(text) == text


@pytest.mark.parametrize(
    "head",
    ["Received request chatcmpl-1: ", "Received request a:b: ", "Request c-1 details: ", "Generated response c-1: "],
)
def test_prompts_and_answers_are_left_out(head):
    """Line by line, whatever the client called its request."""
    told = redaction.redact_prompts(f"before\n{head}prompt: 'PRIVATE', output: 'PRIVATE'\nafter")
    assert told == f"before\n{head}{redaction.LEFT_OUT}\nafter"


@pytest.mark.parametrize(
    ("name", "secret"),
    [("HF_TOKEN", True), ("api-key", True), ("Authorization", True), ("--ssl-keyfile-password", True),
     ("S3_SECRET", True), ("hf_token", True), ("OPENAI_API_KEY", True), ("DB_PASSWORD", True), ("tokenizer", False),
     ("max_tokens", False), ("port", False), ("TOKENIZERS_PARALLELISM", False), ("VLLM_DISABLE_COMPILE_CACHE", False),
     ("VLLM_MAX_TOKENS_PER_EXPERT_FUSED_MOE", False)],
)  # fmt: skip
def test_a_name_tells(name, secret):
    """In either case of letters; a variable about tokens holds none."""
    assert redaction.is_secret(name) is secret


@pytest.mark.parametrize("part", ["x-", "token ", "http://", "Received request ", "--a", "KEY_", "Request ", "?a&"])
@pytest.mark.timeout(20)
def test_a_hostile_line_takes_no_longer_than_another(part):
    """Nothing is searched again and again in a line of a megabyte; hours would pass."""
    line = part * (1_000_000 // len(part)) + " prompt"
    redaction.redact_secrets(redaction.redact_prompts(line))


def test_a_command_and_an_environment_lose_their_secrets():
    """By the name of a flag or a variable, and by the form of a value; what only looks like one stays."""
    argv = (
        "vllm",
        "--api-key",
        "letmein",
        "--max-num-batched-tokens",
        "512",
        "--tokenizer",
        "x",
        "--trust-remote-code",
    )
    assert redaction.redact_argv(argv) == (*argv[:2], redaction.LEFT_OUT, *argv[3:])
    assert redaction.redact_argv(("vllm", "hf_abcdefghijklmnopqrstuv", "--api-key")) == (
        "vllm",
        redaction.LEFT_OUT,
        "--api-key",
    )
    env = {"HF_TOKEN": "x", "VLLM_X": "Bearer abcdefghijkl", "OMP_NUM_THREADS": "2"}
    assert redaction.redact_variables(env) == {
        "HF_TOKEN": redaction.LEFT_OUT, "VLLM_X": f"Bearer {redaction.LEFT_OUT}", "OMP_NUM_THREADS": "2"
    }  # fmt: skip
