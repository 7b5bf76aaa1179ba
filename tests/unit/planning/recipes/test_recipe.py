"""Recipe files: what is right, and what is said about what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from dflash_tui.common import paths
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.planning import serve_flags
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import iterate_layers

DEMO = paths.bundled_folder("recipes") / "demo-cpu.yaml"
FULL = """\
title: A pair with every part of a recipe
status: reported
why: >
  Folded over
  two lines.
target:
  model: owner/target
  served_name: mine
  size_gb: 54
  config: {num_hidden_layers: 64, num_key_value_heads: 4, head_dim: 256}
drafter:
  model: owner/drafter
  config:
    num_hidden_layers: 5
num_speculative_tokens: 15
speculation:
  attention_backend: flash_attn
mode: compile
modes:
  compile: as published
flags:
  max-model-len: 8192
  gpu-memory-utilization: 0.8
  limit-mm-per-prompt: {image: 0}
env:
  VLLM_MARLIN_USE_ATOMIC_ADD: "1"
warnings:
  - Slow above eight requests.
differs:
  vllm: published on a nightly
profiles:
  stock:
    title: newest
    engine:
      vllm: 0.33.0
  seed:
    engine:
      vllm: 0.20.2
      packages:
        - vllm==0.20.2
      download_mb: 4000
      disk_mb: 9000
    patches:
      - qwen3-next-eagle3
hardware:
  gb10:
    standing:
      seed:
        status: reported
        why: by a user
        link: https://example.org/thread
    flags:
      max-num-seqs: 4
    expected:
      - source: a user
        profile: seed
        runs: 2
        tok_s: [27, 108]
        acceptance: [0.1, 0.5]
  h100: {}
variants:
  other:
    title: another drafter
    env:
      RAY_TIMEOUT: "1800"
    drafter:
      model: owner/other
failures:
  - sign: out of memory
    cause: too little memory
    fix: use less
"""


def written(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    return path


def refused(path: Path) -> tuple[str, int, str]:
    """The key, the line's number and the reason of the error; the message must have them all."""
    with pytest.raises(RecipeError) as caught:
        recipe_loader.load_recipe(path)
    text = str(caught.value)
    assert text.startswith(f"{path}:"), text
    assert caught.value.exit_code == 2
    line, key, reason = text.removeprefix(f"{path}:").split(": ", 2)
    return key, int(line), reason


def test_the_whole_recipe_is_right(tmp_path):
    """What the mistakes below are made in has none, and has every part."""
    recipe = recipe_loader.load_recipe(written(tmp_path, FULL))
    assert recipe.name == "mine"
    assert [steps for steps, _ in iterate_layers(recipe)] == [
        [],
        ["profiles", "stock"],
        ["profiles", "seed"],
        ["hardware", "gb10"],
        ["hardware", "h100"],
        ["variants", "other"],
    ]


@pytest.mark.parametrize(
    ("line", "key", "most"),
    [
        ("title: ", "title", 300), ("    title: newest", "profiles.stock.title", 300),
        ("    title: another", "variants.other.title", 300), ("  served_name: ", "target.served_name", 4096),
        ("    cause: ", "failures[0].cause", 16_384), ("  model: owner/target", "target.model", 4096),
    ],
)  # fmt: skip
def test_a_text_without_an_end_is_refused(tmp_path, line, key, most):
    """It would fill every list that it is in."""
    content = FULL.replace(line, f"{line.partition(':')[0]}: {'A' * 200_000} #", 1)
    named, _, reason = refused(written(tmp_path, content))
    assert (named, reason.rpartition(" ")[2]) == (key, str(most))


TOP = "A pair with every part of a recipe"
ITSELF = "set by dflash-tui itself"
MISTAKES = [
    # what is replaced, by what, the key that is named, what the reason holds
    ("title: A pair", "title: 5 #", "title", "expected `str`"),
    ("max-model-len: 8192", f"quantization: {'q' * 20_000}", "flags.quantization", "at most 16,384"),
    ("title: A pair", "oldest_vllm: 0.32.0dev1rc1\ntitle: A pair", "oldest_vllm", "matching regex"),
    ("title: A pair", "title: #", "title", "got `null`"),
    ("title: A pair", 'title: "A\\e[2Jpair" #', "title", "matching regex"),
    ("status: reported\nwhy", "status: perfect\nwhy", "status", "invalid enum value 'perfect'"),
    ("status: reported\nwhy", "Status: reported\nwhy", "Status", "did you mean 'status'"),
    ("mode: compile", "mode: fast", "mode", "invalid enum value 'fast'"),
    ("  compile: as", "  fast: as", "modes.fast", "invalid enum value 'fast'"),
    ("mode: compile", "mode: compile\nport: 80000", "port", "<= 65535"),
    ("mode: compile", "mode: compile\nport: 22.5", "port", "expected `int`"),
    ("mode: compile", "mode: compile\nname: other", "name", "expected 'mine'"),
    ("mode: compile", "mode: compile\nbench_scale: .nan", "bench_scale", "a finite number"),
    ("mode: compile", "mode: compile\nlink: http://example.org", "link", "https://"),
    ("mode: compile", "mode: compile\noldest_vllm: 0.26", "oldest_vllm", "expected `str"),
    ("mode: compile", "mode: compile\nbuild: {script: nope.py, size_mb: 1}", "build.script", "no script called"),
    ("mode: compile", "mode: compile\nbuild: {script: ../x.py, size_mb: 1}", "build.script", "matching regex"),
    ("num_speculative_tokens: 15", "num_speculative_tokens: seven", "num_speculative_tokens", "expected `int"),
    ("num_speculative_tokens: 15", "num_speculative_tokens: -1", "num_speculative_tokens", ">= 0"),
    ("num_speculative_tokens: 15", "num_speculative_tokens: 65", "num_speculative_tokens", "<= 64"),
    ("num_speculative_tokens: 15", "num_spec_tokens: 15", "num_spec_tokens", "did you mean 'num_speculative_tokens'"),
    ("  model: owner/target", "  model:", "target.model", "got `null`"),
    ("  model: owner/target", '  model: ""', "target.model", "length >= 1"),
    ("  model: owner/target", "  model: --host", "target.model", "matching regex"),
    ("  served_name: mine", "  served_nam: mine", "target.served_nam", "did you mean 'served_name'"),
    ("  served_name: mine\n", "", "target", "expected a `served_name`"),
    ("  served_name: mine", "  served_name: --uds", "target.served_name", "matching regex"),
    ("  size_gb: 54", "  size_gb: .inf", "target.size_gb", "a finite number"),
    ("  size_gb: 54", "  size_gb: 0", "target.size_gb", "> 0"),
    ("  size_gb: 54", "  size_gb: 54GB", "target.size_gb", "expected `float"),
    ("  size_gb: 54", f"  size_gb: {10**30}", "target.size_gb", "at most 64 bits"),
    ("head_dim: 256}", "head_dim: wide}", "target.config.head_dim", "expected `int"),
    ("    num_hidden_layers: 5", "    num_hiden_layers: 5", "drafter.config.num_hiden_layers", "num_hidden_layers'"),
    ("    num_hidden_layers: 5", "    num_hidden_layers: 5000000", "drafter.config.num_hidden_layers", "<= 1000"),
    ("  attention_backend: flash_attn", "  model: owner/x", "speculation.model", ITSELF),
    ("  attention_backend: flash_attn", "  num_speculative_tokens: 3", "speculation.num_speculative_tokens", ITSELF),
    ("max-model-len: 8192", "max model len: 8192", "flags.max model len", "matching regex"),
    ("max-model-len: 8192", "max_model_len: 8192", "flags.max_model_len", "matching regex"),
    ("max-model-len: 8192", "port: 1", "flags.port", ITSELF),
    ("max-model-len: 8192", "speculative-config.model: x", "flags.speculative-config.model", ITSELF),
    ("max-model-len: 8192", "speculative-conf: x", "flags.speculative-conf", ITSELF),
    ("max-model-len: 8192", "spec-model: x", "flags.spec-model", ITSELF),
    ("max-model-len: 8192", "no-enforce-eager: true", "flags.no-enforce-eager", ITSELF),
    ("max-model-len: 8192", "config: flags.yaml", "flags.config", ITSELF),
    ("max-model-len: 8192", "hf-token: hf_x", "flags.hf-token", "export HF_TOKEN"),
    ("max-model-len: 8192", "ssl-keyfile-password: x", "flags.ssl-keyfile-password", "without a passphrase"),
    ("max-model-len: 8192", "ssl-keyfile-pa: x", "flags.ssl-keyfile-pa", "without a passphrase"),
    (
        "max-model-len: 8192",
        "loader-config.aws_secret_access_key: x",
        "flags.loader-config.aws_secret_access_key",
        "export AWS_SECRET_ACCESS_KEY",
    ),
    ("max-model-len: 8192", "hf-overrides: {a: [{auth_token: x}]}", "flags.hf-overrides", "a.auth_token looks"),
    ("max-model-len: 8192", """hf-overrides: '{"api_key": "x"}'""", "flags.hf-overrides", "api_key looks"),
    ("  attention_backend: flash_attn", "  auth_token: x", "speculation.auth_token", "export AUTH_TOKEN"),
    ("  model: owner/target", "  model: https://me:x@host/model", "target.model", "looks like a secret"),
    (
        "  model: owner/target",
        "  model: owner/target\n  revision: hf_aBaBaBaBaBaBaBaBaB",
        "target.revision",
        "looks like a secret",
    ),
    (
        "        - vllm==0.20.2",
        "        - vllm @ https://me:x@h/w",
        "profiles.seed.engine.packages[0]",
        "secret",
    ),
    ("max-model-len: 8192", "rope-scale: .inf", "flags.rope-scale", "a finite number"),
    ("max-model-len: 8192", 'middleware: [a, "--host"]', "flags.middleware[1]", "matching regex"),
    ("max-model-len: 8192", 'chat-template: "a\\n"', "flags.chat-template", "text in one line"),
    ("max-model-len: 8192", "max-model-len: 1\n  max-model-len: 2", "flags.max-model-len", "given twice"),
    ("{image: 0}", "{image: {a: 1, a: 2}}", "flags.limit-mm-per-prompt.image.a", "given twice"),
    ("gpu-memory-utilization: 0.8", "gpu-memory-utilization: 80", "flags.gpu-memory-utilization", "up to 1"),
    ("gpu-memory-utilization: 0.8", "tensor-parallel-size: two", "flags.tensor-parallel-size", "a number of GPUs"),
    ('VLLM_MARLIN_USE_ATOMIC_ADD: "1"', "VLLM_MARLIN_USE_ATOMIC_ADD: 1", "env.VLLM_MARLIN_USE_ATOMIC_ADD", "`str"),
    ('VLLM_MARLIN_USE_ATOMIC_ADD: "1"', 'vllm-marlin: "1"', "env.vllm-marlin", "matching regex"),
    ('VLLM_MARLIN_USE_ATOMIC_ADD: "1"', "HF_TOKEN: hf_x", "env.HF_TOKEN", "export HF_TOKEN in your shell"),
    ('VLLM_MARLIN_USE_ATOMIC_ADD: "1"', "DB_PASSWORD: x", "env.DB_PASSWORD", "export DB_PASSWORD in your shell"),
    ('VLLM_MARLIN_USE_ATOMIC_ADD: "1"', f"X: ghs_{'a1' * 18}", "env.X", "export it in your shell"),
    ("  - Slow above", "  - [Slow] #", "warnings[0]", "expected `str`"),
    ("  vllm: published on", '  "": published on', "differs.", "length >= 1"),
    ("    title: newest", "    titel: newest", "profiles.stock.titel", "did you mean 'title'"),
    ("    title: newest", "    title: 1", "profiles.stock.title", "expected `str`"),
    ("  stock:\n", "  Stock:\n", "profiles.Stock", "matching regex"),
    ("      vllm: 0.33.0", "      vllm: 0.33", "profiles.stock.engine.vllm", "expected `str`"),
    ("      vllm: 0.33.0", "      vllm: latest", "profiles.stock.engine.vllm", "matching regex"),
    ("      vllm: 0.33.0", "      vllm: 0.19.1", "profiles.stock.engine.vllm", "has no DFlash"),
    ("      vllm: 0.33.0", "      vllm: 0.99.0", "profiles.stock.engine.vllm", "not in the table of releases"),
    ("      vllm: 0.33.0", f"      vllm: 0.{'9' * 5000}.0", "profiles.stock.engine.vllm", "length <= 60"),
    ("        - vllm==0.20.2", f"        - vllm==0.{'9' * 5000}", "profiles.seed.engine.packages[0]", "length <= 2000"),
    ("      vllm: 0.33.0", "      vllm: 0.33.0\n      extra: 1", "profiles.stock.engine.extra", "unknown key"),
    ("    engine:\n      vllm: 0.33.0", "    mode: eager", "profiles.stock", "expected an `engine`"),
    ("      disk_mb: 9000\n", "", "profiles.seed.engine.packages", "`disk_mb` are missing"),
    ("        - vllm==0.20.2", "        - -r requirements.txt", "profiles.seed.engine.packages[0]", "matching regex"),
    ("        - vllm==0.20.2", "        - vllm is nice", "profiles.seed.engine.packages[0]", "not a requirement"),
    ("      download_mb: 4000", "      download_mb: 4 GB", "profiles.seed.engine.download_mb", "expected `int`"),
    ("      - qwen3-next-eagle3", "      - nope", "profiles.seed.patches[0]", "no patch called 'nope'"),
    ("      - qwen3-next-eagle3", "      - ../../x", "profiles.seed.patches[0]", "matching regex"),
    ("  gb10:\n", "  gb11:\n", "hardware.gb11", "invalid enum value 'gb11'"),
    ("  h100: {}", "  h100:", "hardware.h100", "got `null`"),
    ("      max-num-seqs: 4", "      host: 0.0.0.0", "hardware.gb10.flags.host", ITSELF),
    (
        "      seed:\n        status",
        "      sed:\n        status",
        "hardware.gb10.standing.sed",
        "no profile called 'sed'",
    ),
    ("        status: reported", "        status: solid", "hardware.gb10.standing.seed.status", "invalid enum value"),
    ("        why: by a user\n", "", "hardware.gb10.standing.seed", "missing required field `why`"),
    ("https://example.org/thread", "http://example.org", "hardware.gb10.standing.seed.link", "https://"),
    ("https://example.org/thread", "https://e.org/a b", "hardware.gb10.standing.seed.link", "matching regex"),
    ("        profile: seed", "        profile: sed", "hardware.gb10.expected[0].profile", "no profile called 'sed'"),
    ("        runs: 2", "        runs: 0", "hardware.gb10.expected[0].runs", ">= 1"),
    ("[27, 108]", "[27, 60, 108]", "hardware.gb10.expected[0].tok_s", "length"),
    ("[27, 108]", "27", "hardware.gb10.expected[0].tok_s", "expected `array"),
    ("[27, 108]", "[108, 27]", "hardware.gb10.expected[0].tok_s", "smaller figure first"),
    ("[27, 108]", "[27, .nan]", "hardware.gb10.expected[0].tok_s[1]", "a finite number"),
    ("[0.1, 0.5]", "[10, 50]", "hardware.gb10.expected[0].acceptance[0]", "<= 1"),
    ("      - source: a user\n        profile", "      - profile", "hardware.gb10.expected[0]", "field `source`"),
    ('      RAY_TIMEOUT: "1800"', "      API_KEY: x", "variants.other.env.API_KEY", "export API_KEY in your shell"),
    ('      RAY_TIMEOUT: "1800"', "      RAY_TIMEOUT: 1800", "variants.other.env.RAY_TIMEOUT", "expected `str"),
    ("      model: owner/other", "      modell: owner/other", "variants.other.drafter.modell", "did you mean 'model'"),
    ("    cause: too little memory\n", "", "failures[0]", "missing required field `cause`"),
    ("    fix: use less", "    fix: use less\n    links: x", "failures[0].links", "did you mean 'link'"),
]


def test_a_mistake_is_named_with_file_line_and_key(tmp_path):
    """The message is file:line: key: what was expected; the line is the one with the key, or the item's first."""
    for old, new, key, expected in MISTAKES:
        assert FULL.count(old) == 1, old
        path = written(tmp_path, FULL.replace(old, new))
        named, line, reason = refused(path)
        assert (named, expected in reason) == (key, True), (new, reason)
        last = key.rpartition(".")[2] or '""'
        found = path.read_text().splitlines()[line - 1]
        assert last.partition("[")[0] in found or ("[" in last and found.lstrip().startswith("- ")), (new, found)


def test_a_recipe_without_any_engine_is_refused(tmp_path, snapshot):
    """Neither here nor in a profile."""
    path = written(tmp_path, FULL[: FULL.index("profiles:")])
    assert refused(path) == ("title", 1, snapshot)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a: &x 1\nb: *x", ":2: aliases"),
        ("title: x\nmode: [0.5", ":3: not YAML"),
        ("title: x\n\tmode: eager", ":2: not YAML"),
        ("title: a\n---\ntitle: b", ":2: not YAML"),
        ("- a\n- b", ":1: expected keys and values"),
        ("just text", ":1: expected keys and values"),
        ("title: !!python/object:x {}", ":1: tags"),
        ("title: x\nflags: {a: !!binary aGk=}", ":2: tags"),
        ("flags: {b: !!set {c}}", ":1: tags"),
        ("? [a]\n: b", ":1: expected a word as a key"),
        ("title: !!timestamp 2020-99-99", ":1: tags"),
        ("title: x\nmodes: " + "[" * 30, ":2: nested too deeply"),
        ("", ":1: expected keys and values"),
    ],
)
def test_what_is_no_recipe_is_refused(tmp_path, content, expected):
    """YAML that is none, or that is more than a recipe needs, ends in a sentence with its line."""
    path = written(tmp_path, content)
    with pytest.raises(RecipeError) as caught:
        recipe_loader.load_recipe(path)
    assert str(caught.value).startswith(str(path))
    assert expected in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a: " + b"x" * 300_000, b"[" * 5000, b"a: \x00"])
def test_a_file_that_is_no_text_or_too_large_is_refused(tmp_path, content):
    """Binary, huge and deep files cost neither memory nor a traceback."""
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=r"bad\.yaml"):
        recipe_loader.load_recipe(path)


def test_what_is_no_file_is_refused(tmp_path):
    """A folder cannot be read, and a missing file is named."""
    for path, expected in ((tmp_path, "Is a directory"), (tmp_path / "no.yaml", "No such file")):
        with pytest.raises(RecipeError, match=expected):
            recipe_loader.load_recipe(path)


@pytest.mark.parametrize("name", ["my recipe", "-rf", "a\nb", "x" * 65, "é"])
def test_a_name_that_no_run_could_have_is_refused(tmp_path, name, snapshot):
    """Runs and their folders are called after the recipe."""
    path = tmp_path / f"{name}.yaml"
    path.write_text(FULL)
    with pytest.raises(RecipeError) as caught:
        recipe_loader.load_recipe(path)
    assert caught.value.what.rpartition(".yaml: ")[2] == snapshot


@pytest.mark.parametrize(
    "flag",
    ["host", "port", "Served_Model_Name", "speculative_config.model", "por", "enforce", "no-enforce-eager", "rev"],
)
def test_a_flag_of_ours_is_reserved_however_it_is_spelled(flag):
    """As vLLM's parser reads it: underscores, dots, cut short, negated."""
    assert serve_flags.explain_reserved_flag(flag)


@pytest.mark.parametrize("flag", ["max-model-len", "hf-overrides", "model-impl", "config-format", "special"])
def test_other_flags_are_free(flag):
    """Names that only look alike."""
    assert not serve_flags.explain_reserved_flag(flag)


def test_an_unknown_name_gets_a_suggestion():
    """A near miss is named; without one, what there is."""
    with pytest.raises(UsageError, match="did you mean 'demo-cpu'"):
        recipe_loader.find_recipe("demo-gpu")
    with pytest.raises(UsageError, match=r"there are: demo-cpu, gemma-4-12b, .*qwen3\.5-35b-a3b"):
        recipe_loader.find_recipe("zzzzzz")


def test_the_users_recipe_wins(folders):
    """A file of the same name in the user's folder replaces the shipped one; a path is taken as it is."""
    folder = folders / "config" / "dflash-tui" / "recipes"
    folder.mkdir(parents=True)
    (folder / "demo-cpu.yaml").write_text(DEMO.read_text().replace("port: 8000", "port: 9000"))
    assert recipe_loader.find_recipe("demo-cpu").port == 9000
    assert recipe_loader.find_recipe(str(DEMO)).port == 8000


def test_templates_and_schemas_are_no_recipes(folders):
    """What starts with _ or . is not listed, nor is anything but .yaml."""
    folder = folders / "config" / "dflash-tui" / "recipes"
    folder.mkdir(parents=True)
    for name in ("_mine.yaml", ".mine.yaml", "mine.json", "mine.yaml.bak"):
        (folder / name).write_text(FULL)
    assert sorted(recipe_loader.list_recipe_files()) == [
        "demo-cpu",
        "gemma-4-12b",
        "gemma-4-26b-a4b",
        "gemma-4-31b",
        "glm-5.3-flash",
        "gpt-oss-120b",
        "laguna-s-2.1",
        "laguna-xs-2.1",
        "muse-glimmer-30b",
        "nemotron-3-super",
        "nemotron-3.5-lightning",
        "qwen3-coder-next",
        "qwen3.5-122b-a10b",
        "qwen3.5-27b",
        "qwen3.5-35b-a3b",
        "qwen3.6-27b",
        "qwen3.6-35b-a3b",
        "qwen3.8-27b",
        "qwen3.8-flash-next",
    ]


def test_python_survives_the_types_of_a_recipe():
    """Some unions make msgspec free a pattern once too often, which kills Python sooner or later."""
    code = (
        "import gc, typing\n"
        "from msgspec import Struct\n"
        "from msgspec.json import Decoder\n"
        "from dflash_tui.planning.recipes import recipe\n"
        "parts = [part for part in vars(recipe).values() if isinstance(part, type) and issubclass(part, Struct)]\n"
        "kinds = [kind for part in parts for kind in typing.get_type_hints(part, include_extras=True).values()]\n"
        "assert len(kinds) > 100\n"
        "for _ in range(100): [Decoder(kind) for kind in kinds]; gc.collect()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_a_release_with_a_number_that_python_does_not_read_is_unknown():
    with pytest.raises(UsageError) as refused:
        recipe_loader.engine_for_release(f"0.{'9' * 5000}")
    assert "0.33.0" in (refused.value.hint or "")
