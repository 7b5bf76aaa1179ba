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


def test_unchanged_recipe_has_no_mistake(tmp_path):
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


ITSELF = "set by dflash-tui itself"
MISTAKES = [
    # what is replaced, by what, the key that is named, what the reason holds
    ("title: A pair", 'title: "A\\e[2Jpair" #', "title", "matching regex"),
    ("status: reported\nwhy", "status: perfect\nwhy", "status", "invalid enum value 'perfect'"),
    ("  compile: as", "  fast: as", "modes.fast", "invalid enum value 'fast'"),
    ("mode: compile", "mode: compile\nbuild: {script: nope.py, size_mb: 1}", "build.script", "no script called"),
    ("num_speculative_tokens: 15", "num_speculative_tokens: 65", "num_speculative_tokens", "<= 64"),
    ("  model: owner/target", "  model: --host", "target.model", "matching regex"),
    ("  served_name: mine\n", "", "target", "expected a `served_name`"),
    ("    num_hidden_layers: 5", "    num_hiden_layers: 5", "drafter.config.num_hiden_layers", "num_hidden_layers'"),
    ("  attention_backend: flash_attn", "  model: owner/x", "speculation.model", ITSELF),
    ("max-model-len: 8192", "max_model_len: 8192", "flags.max_model_len", "matching regex"),
    ("max-model-len: 8192", "port: 1", "flags.port", ITSELF),
    ("max-model-len: 8192", "hf-overrides: {a: [{auth_token: x}]}", "flags.hf-overrides", "a.auth_token looks"),
    ("  model: owner/target", "  model: https://me:x@host/model", "target.model", "looks like a secret"),
    (
        "        - vllm==0.20.2",
        "        - vllm @ https://me:x@h/w",
        "profiles.seed.engine.packages[0]",
        "secret",
    ),
    ("max-model-len: 8192", 'middleware: [a, "--host"]', "flags.middleware[1]", "matching regex"),
    ("max-model-len: 8192", 'chat-template: "a\\n"', "flags.chat-template", "text in one line"),
    ("{image: 0}", "{image: {a: 1, a: 2}}", "flags.limit-mm-per-prompt.image.a", "given twice"),
    ("gpu-memory-utilization: 0.8", "gpu-memory-utilization: 80", "flags.gpu-memory-utilization", "up to 1"),
    ("    title: newest", "    titel: newest", "profiles.stock.titel", "did you mean 'title'"),
    ("      vllm: 0.33.0", "      vllm: 0.19.1", "profiles.stock.engine.vllm", "has no DFlash"),
    ("      vllm: 0.33.0", "      vllm: 0.99.0", "profiles.stock.engine.vllm", "not in the table of releases"),
    ("        - vllm==0.20.2", "        - -r requirements.txt", "profiles.seed.engine.packages[0]", "matching regex"),
    ("      - qwen3-next-eagle3", "      - nope", "profiles.seed.patches[0]", "no patch called 'nope'"),
    (
        "      seed:\n        status",
        "      sed:\n        status",
        "hardware.gb10.standing.sed",
        "no profile called 'sed'",
    ),
    ("        profile: seed", "        profile: sed", "hardware.gb10.expected[0].profile", "no profile called 'sed'"),
    ("[27, 108]", "[108, 27]", "hardware.gb10.expected[0].tok_s", "smaller figure first"),
    ('      RAY_TIMEOUT: "1800"', "      API_KEY: x", "variants.other.env.API_KEY", "export API_KEY in your shell"),
    ("    cause: too little memory\n", "", "failures[0]", "missing required field `cause`"),
]


def test_recipe_mistake_names_file_line_and_key(tmp_path):
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
    path = written(tmp_path, FULL[: FULL.index("profiles:")])
    assert refused(path) == ("title", 1, snapshot)


@pytest.mark.parametrize("name", ["my recipe", "x" * 65])
def test_recipe_name_unfit_for_run_is_refused(tmp_path, name, snapshot):
    path = tmp_path / f"{name}.yaml"
    path.write_text(FULL)
    with pytest.raises(RecipeError) as caught:
        recipe_loader.load_recipe(path)
    assert caught.value.what.rpartition(".yaml: ")[2] == snapshot


@pytest.mark.parametrize("flag", ["host", "Served_Model_Name", "speculative_config.model", "por", "no-enforce-eager"])
def test_reserved_flag_is_recognized_in_every_spelling(flag):
    """As vLLM's parser reads it: underscores, dots, cut short, negated."""
    assert serve_flags.explain_reserved_flag(flag)


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(UsageError, match="did you mean 'demo-cpu'"):
        recipe_loader.find_recipe("demo-gpu")
    with pytest.raises(UsageError, match=r"there are: deepseek-v4-flash, demo-cpu, gemma-4-12b, .*qwen3\.5-35b-a3b"):
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
    assert recipe_loader.list_recipe_files() == recipe_loader.list_shipped_files()


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
