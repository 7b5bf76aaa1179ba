"""Recipe files: what is right, and what is said about what is wrong."""

import pytest
from msgspec.structs import replace

from dflash_tui.core import paths, plan, recipe
from dflash_tui.core.recipe import FlagValue, Mode
from dflash_tui.errors import RecipeError, UsageError

DEMO = paths.bundled("recipes") / "demo-cpu.yaml"


def edited(tmp_path, old: str, new: str):
    """Write the demo recipe with one change."""
    text = DEMO.read_text()
    assert text.count(old) == 1, old
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("num_speculative_tokens: 7", "num_speculative_tokens: seven", "num_speculative_tokens", "expected `int`"),
        ("num_speculative_tokens: 7", "num_spec_tokens: 7", "num_spec_tokens", "did you mean 'num_speculative_tokens'"),
        ("num_speculative_tokens: 7", "num_speculative_tokens: 0", "num_speculative_tokens", ">= 1"),
        ("port: 8000", "port: 80000", "port", "<= 65535"),
        ("mode: eager", "mode: fast", "mode", "invalid enum value 'fast'"),
        ("status: verified", "status: perfect", "status", "invalid enum value 'perfect'"),
        ("  vllm: 0.32.0", "  vllm: 0.32", "vllm", "expected `str`"),
        ("  vllm: 0.32.0", "  vllm: latest", "vllm", "matching regex"),
        ("  disk_mb: 2600", "", "engine:", "missing required field `disk_mb`"),
        ("max-model-len: 4096", "max model len: 4096", "max model len", "matching regex"),
        ("max-model-len: 4096", "port: 1", "port: 1", "set by dflash-tui itself"),
        ("max-model-len: 4096", "api_key: x", "api_key", "set by dflash-tui itself"),
        ("max-model-len: 4096", "Speculative_Config.model: x", "Speculative_Config", "set by dflash-tui itself"),
        ("max-model-len: 4096", "rope-scale: .inf", "flags", "JSON cannot"),
        ("max-model-len: 4096", "hf-overrides: {b: !!binary aGk=}", "flags", "JSON cannot"),
        ("num_speculative_tokens: 7", "num_speculative_tokens: 7\n  config: {model: x}", "model: x", "itself"),
        ('HF_HUB_OFFLINE: "1"', "HF_TOKEN: hf_x", "HF_TOKEN", "export it in your shell"),
        ("script: build_demo_pair.py", "script: nope.py", "nope.py", "no script called"),
        ("bench_scale: 0.5", "bench_scale: 0.5\nbench_scale: 1", "bench_scale: 1", "given twice"),
        ("bench_scale: 0.5", "bench_scale: *x", "bench_scale", "aliases"),
        ("bench_scale: 0.5", "bench_scale: [0.5", "", "not YAML"),
        ("script: build_demo_pair.py", "script: ../../evil.py", "script", "matching regex"),
        ("HF_HUB_OFFLINE:", "hf-hub:", "hf-hub", "matching regex"),
        ('HF_HUB_OFFLINE: "1"', "HF_HUB_OFFLINE: 1", "HF_HUB_OFFLINE", "expected `str`"),
        ("  - cpu-expand-kernel", "  - ../../x", "../../x", "matching regex"),
        ("title: Demo", "title: 5 #", "title", "expected `str`"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(tmp_path, old, new, line, expected):
    """The message starts with file:line, and says what was expected."""
    path = edited(tmp_path, old, new)
    with pytest.raises(RecipeError) as caught:
        recipe.load(path)
    text = str(caught.value)
    assert expected in text
    where = text.partition(": ")[0]
    assert where.startswith(str(path))
    if line:
        number = int(where.rpartition(":")[2])
        assert line in path.read_text().splitlines()[number - 1]
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"just text", id="text"),
        pytest.param(b"- a\n- b", id="list"),
        pytest.param(b"\xff\xfe\x00", id="binary"),
        pytest.param(b"a: " + b"x" * 300_000, id="huge"),
        pytest.param(b"[" * 5000, id="deep"),
        pytest.param(b"!!python/object:x {}", id="object"),
    ],
)
def test_what_is_no_recipe_is_refused(tmp_path, content):
    """Empty, huge, binary, deep or malicious files end in a sentence, not a traceback."""
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=r"bad\.yaml"):
        recipe.load(path)


def test_an_unknown_name_gets_a_suggestion():
    """A near miss is named; without one, what there is."""
    with pytest.raises(UsageError, match="did you mean 'demo-cpu'"):
        recipe.find("demo-gpu")
    with pytest.raises(UsageError, match="there are: demo-cpu"):
        recipe.find("zzzzzz")


def test_the_users_recipe_wins(tmp_path, monkeypatch):
    """A file of the same name in the user's folder replaces the shipped one."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "dflash-tui" / "recipes"
    folder.mkdir(parents=True)
    (folder / "demo-cpu.yaml").write_text(DEMO.read_text().replace("port: 8000", "port: 9000"))
    assert recipe.find("demo-cpu").port == 9000


def test_the_plan_is_the_exact_command():
    """The plan of the demo recipe has one drafter, binds to this machine only and passes no shell."""
    made = plan.make(recipe.find("demo-cpu"), mode=Mode.COMPILE, port=8123, num_speculative_tokens=3)
    words = list(made.argv)
    assert words[1] == "serve"
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert words[words.index("--port") + 1] == "8123"
    assert "--enforce-eager" not in words
    assert '"num_speculative_tokens": 3' in words[words.index("--speculative-config") + 1]
    assert words[words.index("--max-model-len") + 1] == "4096"
    assert plan.make(recipe.find("demo-cpu")).argv.count("--enforce-eager") == 1


def test_flags_become_words():
    """True is a switch, false its negation, a mapping JSON, a list several words."""
    flags: dict[str, FlagValue] = {"a": True, "b": False, "c": {"x": 1}, "d": ["p", "q r"], "e": 0.5}
    made = plan.make(replace(recipe.find("demo-cpu"), flags=flags))
    assert list(made.argv[-9:]) == ["--a", "--no-b", "--c", '{"x": 1}', "--d", "p", "q r", "--e", "0.5"]
    assert "'q r'" in plan.command(made)


def test_another_engine_spec_has_another_folder():
    """Engines are keyed by everything that goes into them."""
    spec = recipe.find("demo-cpu").engine
    assert plan.engine_folder(spec) == plan.engine_folder(spec)
    assert plan.engine_folder(replace(spec, exclude_newer="2026-01-01")) != plan.engine_folder(spec)
