"""What is secret in texts that leave the machine, and what is not."""

import pytest

from dflash_tui.common.secrets import redaction, settings_secrets
from dflash_tui.common.secrets.own_secrets import LEFT_OUT, own_secrets, read_own_secrets
from dflash_tui.common.secrets.secret_names import is_secret


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
        "no run called '10.0.0.5:8000'", "http://h:8000/x/model@main cannot be read", "image sha is a:latest@sha256:0f",
        "file.yaml:3: key@x: expected", "mail me@host", "ssh user@host ls", "h:8000/x/model@main",
        """'h:80','me@host'""", '{"a":"http://h","b":"me@host"}', "['a:b', 'c@d']", """'http://h' me@host""",
        "https://github.com/x/y.git@main", "git+https://h:443/x@v1",
    ],
)  # fmt: skip
def test_an_address_without_a_password_stays(text):
    """Messages name hosts, ports, revisions and lines of files."""
    assert redaction.redact_typed_secrets(text) == text


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
    assert told == f"before\n{head}{LEFT_OUT}\nafter"


@pytest.mark.parametrize(
    "said",
    [
        "[entrypoints/serve/utils/request_logger.py:74] Request chatcmpl-1 JSON body: ",
        f"[request_logger.py:55] Request {'x' * 900} details: prompt: ",
        "[entrypoints/anthropic/serving.py:804] Received messages request ",
        "[renderers/chat_utils.py:1607] Input prompt: ",
        "[tool_parsers/phi4mini_tool_parser.py:58] Model output: ",
    ],
)
def test_what_debug_lines_quote_of_requests_is_left_out(said):
    """A body, a messages request, what a tool parser reads: whichever module it is that reads them."""
    place, _, _ = said.partition(" ")
    start = f"(APIServer pid=7) DEBUG 11-27 08:30:00 {place} "
    quoted = f"{start}{said.removeprefix(place)[1:]}PRIVATE"
    assert redaction.redact_prompts(quoted) == f"{start}{LEFT_OUT}"


def test_what_pydantic_quotes_of_a_request_is_left_out():
    """It shows what it refuses, cut in the middle; what kind of thing that was stays."""
    before, after = "  Input should be a valid string [type=string_type, ", ", input_type=dict]"
    for end in (after, ""):
        said = redaction.redact_prompts(f"{before}input_value={{'messages': [{{'content': 'PRIV...ATE'}}]}}{end}\nnext")
        assert said == f"{before}input_value={LEFT_OUT}{end}\nnext"


@pytest.mark.parametrize("said", ["response_body=", "Received Cohere v2 chat request", "Request 1 JSON body:"])
def test_bodies_are_left_out_at_any_level(said):
    """Releases differ in the level of what they log; what says nothing of a body stays."""
    start = "INFO 11-27 08:30:00 [some_place.py:1] "
    assert redaction.redact_prompts(f"{start}{said} PRIVATE") == f"{start}{said} {LEFT_OUT}"
    for stays in (
        f"{start}Request cmpl-1 aborted.",
        "DEBUG 11-27 08:30:00 [v1/engine/core.py:1382] Received init message: x",
    ):
        assert redaction.redact_prompts(stays) == stays


@pytest.mark.parametrize(
    ("name", "secret"),
    [("HF_TOKEN", True), ("api-key", True), ("Authorization", True), ("--ssl-keyfile-password", True),
     ("S3_SECRET", True), ("hf_token", True), ("OPENAI_API_KEY", True), ("DB_PASSWORD", True), ("tokenizer", False),
     ("max_tokens", False), ("port", False), ("TOKENIZERS_PARALLELISM", False), ("VLLM_DISABLE_COMPILE_CACHE", False),
     ("VLLM_MAX_TOKENS_PER_EXPERT_FUSED_MOE", False), ("DB_PASS", True), ("PGPASS", True), ("DB_PWD", True),
     ("GITHUB_PAT", True), ("NPM_AUTH", True), ("auth_token", True), ("aws_access_key_id", True), ("API_TOKENS", True),
     ("PWD", False), ("OLDPWD", False), ("SSH_AUTH_SOCK", False), ("HF_TOKEN_PATH", False), ("COMPASS", False),
     ("PIP_KEYRING_PROVIDER", False), ("KEYBOARD", False), ("ssl-keyfile", False), ("pass_config", False)],
)  # fmt: skip
def test_a_name_tells(name, secret):
    """In either case of letters; a variable about tokens holds none."""
    assert is_secret(name) is secret


# Those of `vllm serve` 0.32 and of what its configurations hold, with `token`, `key`, `pass` or `auth` in the name.
OF_VLLM = """\
allow-credentials cache_hit_alignment_tokens dbo-decode-token-threshold dbo-prefill-token-threshold detokenize
enable-prompt-tokens-details enable-tokenizer-info-endpoint encoder_cudagraph_token_budgets eos_token eos_token_id
inductor_passes key_value_cache kv_cache_size_tokens linear_key_head_dim linear_num_key_heads
long-prefill-token-threshold long-prefill-token-threshold-adaptive mask_token_id max-num-batched-tokens
max-num-queued-tokens max-num-scheduled-tokens max_num_encoder_input_tokens max_tokens min_tokens
num_experts_per_token num_key_value_heads num_speculative_tokens
num_speculative_tokens_per_batch_size pass_config return-tokens-as-token-ids
rope_kvcache_fusion_max_token_num skip-tokenizer-init speculative_token_tree ssl-keyfile stop_token_ids
suffix_decoding_min_token_prob thinking_token_budget token_ids tokenizer tokenizer-mode tokenizer-revision tokens-only
tokenspeed_mla_min_split_kv trace_decode_token_ids VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE
VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD VLLM_USE_FASTOKENS
VLLM_ENABLE_PREGRAD_PASSES"""


@pytest.mark.parametrize("name", OF_VLLM.split())
def test_flags_about_tokens_and_caches_hold_no_secret(name):
    """Nor does one with underscores for dashes, or one inside another."""
    for spelled in (name, name.replace("-", "_"), f"hf-overrides.{name}"):
        assert settings_secrets.find_secret(spelled, "some-text") is None
        assert settings_secrets.find_secret("hf-overrides", {spelled: ["some-text", 7, {"x": None}]}) is None


@pytest.mark.parametrize(
    ("name", "value", "place"),
    [
        ("ssl-keyfile-password", "x", "ssl-keyfile-password"),
        ("model-loader-extra-config.aws_secret_access_key", "x", "model-loader-extra-config.aws_secret_access_key"),
        ("model-loader-extra-config", {"a": [{"aws_secret_access_key": "x"}]},
         "model-loader-extra-config.a.aws_secret_access_key"),
        ("a", '{"b": {"auth_token": "x"}}', "a.b.auth_token"),
        ("a", '[{"name": "api_key", "value": "x"}]', "a"),
        ("a", '{"b": "{\\"api_key\\": \\"x\\"}"}', "a.b.api_key"),
        ("a", "{'api_key': 'x'}", "a"),
        ("a", {"credentials": {"user": "x"}}, "a.credentials.user"),
        ("a", ["ok", {"b": "https://me:x@host"}], "a.b"),
        ("a.auth_token+", "x", "a.auth_token+"),
        ("env.DB_PASS", "x", "env.DB_PASS"),
        ("a", {"hf_" + "aB" * 17: 1}, "a key in it"),
        ("a", {"password": 123456}, "a.password"),
        *(("env.X", token, "env.X") for token in (
            "ghp_" + "a1" * 18, "ghs_" + "a1" * 18, "github_pat_" + "a1" * 20, "sk-" + "a1" * 20,
            "sk-proj-" + "a1" * 20, "hf_" + "aB" * 17,
            "AKIA" + "A1" * 8, "ASIA" + "A1" * 8, "xoxb-" + "1" * 12 + "-ab", "xoxp-" + "a1" * 12,
            "glpat-" + "a1" * 10, "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl",
            "prefix=-----BEGIN PRIVATE KEY-----", "gsk_" + "a1" * 26, "r8_" + "a1" * 19, "xai-" + "a1" * 40,
            "pplx-" + "a1" * 24, "pypi-" + "AgEI" * 20, "ya29." + "a0-_" * 10, "hvs." + "CAES" * 20,
            "Authorization: Bearer abcd-efg", "authorization=Basic dXNlcjp4", "Bearer 0123456789abcdef",
            "dckr_pat_" + "aB3" * 9, "SG." + "a1" * 11 + "." + "b2" * 20, "lsv2_pt_" + "a1" * 16, "tvly-" + "a1" * 16,
            "dop_v1_" + "a1" * 32, "sq0atp-" + "a1" * 11, "shpat_" + "a1" * 16, "ATATT3x" + "a1" * 30,
            "glrt-" + "a1" * 10, "rpa_" + "A1" * 21, "whsec_" + "a1" * 16, "ntn_" + "a1" * 21, "figd_" + "a1" * 20,
            "lin_api_" + "a1" * 20, "tgp_v1_" + "a1" * 20, "hf_oauth_" + "aB" * 25, "hf_jwt_eyJhbGciOiJI.eyJzd.c2ln",
            "AGE-SECRET-KEY-1" + "Q9" * 29, "https://hooks.slack.com/services/T0/B0/" + "a1" * 12,
            "https://discord.com/api/webhooks/12345/" + "a1" * 30, "https://x.blob.core.windows.net/c?sv=1&sig=ab%3D",
            "x-api-key=abcdef12", "a=1,my-secret=abcdef12", "https://host/v1?access_token=abcdef12",
            "http://me:s3cr/3t@host", "me:pw@db:5432", "http://me:'s3cr3tpw'@host:4317", 'http://me:s3"cr"3t@host',
            "me:s3cr/3tpw@host:80", "me@corp.com:s3cr3tpw@host:80", "me:s3c'r3t@host", "x=http://me:\"s3cr3tpw\"@host",
            "x-api-key: abcdef12", "A: b, password: hunter22",
            "-----BEGIN PGP PRIVATE KEY BLOCK-----\nx", "GOCSPX-" + "a1" * 14, "dapi" + "a1" * 16, "glsa_" + "a1" * 20,
            "tskey-auth-" + "kA1" * 8, "doo_v1_" + "a1" * 32, "shpss_" + "a1" * 16, "hvb." + "a1" * 20,
            "wandb_v1_" + "a1" * 20, "http:me:pw@10.0.0.5:8000", "password='hunter22'", "password = hunter22",
            "password:hunter22", "--password hunter22", 'x {"password": "hunter22"}', 'dict(api_key="abcdefg")',
            "x-api-key:abcdefgh", "token:abcdefgh", "Server=h;Uid=u;Pwd=longsecret1;",
            "pwd=hunter2", "api_key=abcdefg", "glptt-" + "a1" * 20, "sntrys_" + "eyJ" * 12 + "=",
            "pcsk_" + "a1" * 30, "jina_" + "a1" * 16 + "Zz9" * 9, "dp.st.dev." + "a1" * 20, "ATBB" + "a1" * 14,
            "12345678:AA" + "a1" * 16 + "b",
        )),
    ],
)  # fmt: skip
def test_a_secret_is_found_in_a_setting(name, value, place):
    """By the name of a flag, a variable or a key at any depth, or by its form."""
    assert settings_secrets.find_secret(name, value) == place


@pytest.mark.parametrize(
    ("name", "value"),
    [("allow-credentials", True), ("a", {"auth": False, "api_key": None, "token": 7, "draft_token": [1, 2]}),
     ("a", '{"max_tokens": 7, "b": "[(0,), (0, 1)]"}'), ("a", "[1, 2"), ("a", "task-scheduler-with-a-long-name"),
     ("a", '["Authorization", "Content-Type"]'), ("a", ["Authorization", "X-Key"]), ("a", "a=1,sort_key=timestamps"),
     ("a", "https://host/?max_tokens=12345678&token=12345678"), ("a", "org/xai-some-thing-with-a-long-name"),
     ("a", "bearer of news"), ("a", "Authorization: Bearer $VLLM_API_KEY"),
     ("a", "X-Key: $VLLM_API_KEY"), ("a", "image:latest@sha256:0f"), ("a", "http://h:8000/x/model@main")],
)  # fmt: skip
def test_a_setting_without_a_secret_passes(name, value):
    """A switch, a number of tokens, nothing at all."""
    assert settings_secrets.find_secret(name, value) is None


def test_a_private_key_is_left_out_to_its_end():
    """Whether the end is there or not."""
    text = "a -----BEGIN RSA PRIVATE KEY-----\\nMIIEv\\n-----END RSA PRIVATE KEY----- b"
    assert redaction.redact_secrets(text) == "a -----BEGIN RSA PRIVATE KEY-----[left out] b"
    assert "MIIEv" not in redaction.redact_secrets("-----BEGIN PRIVATE KEY-----\nMIIEv")
    encrypted = (
        "-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES-256-CBC,0\n\nMIIEv\n-----END RSA PRIVATE KEY-----\nafter"
    )
    assert redaction.redact_secrets(encrypted) == "-----BEGIN RSA PRIVATE KEY-----[left out]\nafter"


@pytest.mark.parametrize(
    "part",
    [
        "x-",
        "token ",
        "http://",
        "Received request ",
        "--a",
        "KEY_",
        "Request ",
        "?a&",
        "eyJ-",
        "DEBUG ",
        "DEBUG [serving",
        "input_value=",
        "+",
        "a:",
        "-----BEGIN PRIVATE KEY-----",
        "://a:",
        "(a:",
        "://a:b'",
        "(a:b@sha1",
        "://a:" * 90 + "',@",
        "(a:" * 160 + "',@",
        "://" + "a'" * 400 + "',@",
        "\\n",
        "%0a",
        "&#0",
        "2f",
        "x %41 ",
    ],
    ids=lambda part: part[:20],
)
@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "search",
    [
        lambda line: redaction.redact_secrets(redaction.redact_prompts(line)),
        lambda line: redaction.redact_typed_secrets(f"{line}@"),
        lambda line: settings_secrets.find_secret("x", f"{line}@"),
        lambda line: own_secrets().hide_cut(line, start=True, end=True),
    ],
    ids=["log", "typed", "setting", "cut"],
)
def test_a_hostile_line_takes_no_longer_than_another(search, part, monkeypatch):
    """Nothing is searched again and again in a line of a megabyte; hours would pass."""
    monkeypatch.setenv("DB_PASS", "correct hörse/battery staple")
    read_own_secrets()
    search(part * (1_000_000 // len(part)) + " prompt")


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
    assert redaction.redact_argv(argv) == (*argv[:2], LEFT_OUT, *argv[3:])
    assert redaction.redact_argv(("vllm", "hf_abcdefghijklmnopqrstuv", "--api-key")) == (
        "vllm",
        LEFT_OUT,
        "--api-key",
    )
    env = {"HF_TOKEN": "x", "VLLM_X": "Bearer abcdefghijkl", "OMP_NUM_THREADS": "2"}
    assert redaction.redact_variables(env) == {
        "HF_TOKEN": LEFT_OUT, "VLLM_X": f"Bearer {LEFT_OUT}", "OMP_NUM_THREADS": "2"
    }  # fmt: skip
