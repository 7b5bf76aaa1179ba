"""What must not creep in: the panel in the core, a slow `--version`, tracebacks that a user can cause."""

import ast
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dflash_tui
from dflash_tui import tui
from dflash_tui.cli import main
from tests.support.source_trees import parse_file

EVERYTHING_BUT_THE_PANEL = (
    "import importlib, pkgutil, sys, dflash_tui\n"
    "for module in pkgutil.walk_packages(dflash_tui.__path__, 'dflash_tui.', onerror=print):\n"
    "    if not module.name.startswith(('dflash_tui.tui', 'dflash_tui.in_engine')) and '__main__' not in module.name:\n"
    "        importlib.import_module(module.name)\n"
    "print(*sorted(sys.modules))"
)


def modules(code: str) -> set[str]:
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_nothing_below_the_panel_imports_it():
    """Headless over SSH pays for no Textual, and no engine's vLLM is imported into us."""
    loaded = modules(EVERYTHING_BUT_THE_PANEL)
    assert "dflash_tui.monitoring.observer" in loaded
    roots = {name.partition(".")[0] for name in loaded}
    assert not roots & {"textual", "plotext", "vllm", "torch"}
    panel = {each.name for each in pkgutil.walk_packages(tui.__path__, "dflash_tui.tui.") if not each.ispkg}
    assert len(panel) > 20
    assert not panel & loaded


def test_help_and_version_import_nothing_heavy():
    """`--version` is answered before anything but argparse is loaded."""
    code = (
        "import sys\nfrom dflash_tui.cli import main\nfrom dflash_tui.cli.parser import build_parser\n"
        "build_parser()\nprint(*sorted(sys.modules))"
    )
    roots = {name.partition(".")[0] for name in modules(code)}
    assert not roots & {"msgspec", "httpx", "yaml", "psutil", "textual", "asyncio", "pynvml", "uv"}


def dflash(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dflash_tui", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | env)


def test_without_a_terminal_there_is_no_panel():
    """It says where the commands are, and exits with 2."""
    done = dflash()
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr
    assert "dflash-tui --help" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("plan", "demo-gpu"), "did you mean 'demo-cpu'"),
        (("up", "/nowhere/x.yaml"), "No such file"),
        (("stop",), "no server is running"),
        (("logs", "x"), "no run called 'x'"),
        (("up", "demo-cpu", "--mode", "fast"), "expected one of eager, graphs, compile"),
        (("up", "demo-cpu", "--port", "0"), "from 1 to 65535"),
        (("bench", "--scale", "nan"), "from 0.001 to 100, not 'nan'"),
    ],
)
def test_wrong_argument_exits_2_without_traceback(words, expected, capsys):
    """What a user can get wrong on the command line is no traceback."""
    code: object
    try:
        code = main.main(words)
    except SystemExit as ended:
        code = ended.code
    assert (code, expected in capsys.readouterr().err) == (2, True)


def test_every_option_has_its_variable():
    """DFLASH_TUI_ variables are defaults, and wrong ones are named."""
    planned = dflash("plan", "demo-cpu", DFLASH_TUI_PORT="8123", DFLASH_TUI_MODE="compile", DFLASH_TUI_JSON="1")
    assert (json.loads(planned.stdout)["port"], json.loads(planned.stdout)["mode"]) == (8123, "compile")
    assert "argument --port" in dflash("plan", "demo-cpu", DFLASH_TUI_PORT="many").stderr
    assert json.loads(dflash("plan", "demo-cpu", "--json", DFLASH_TUI_JSON="0").stdout)


def test_errors_are_json_too():
    """With --json the error is an object on stdout; the sentence stays on stderr."""
    done = dflash("plan", "demo-gpu", "--json")
    found = json.loads(done.stdout)
    assert (found["event"], found["exit_code"]) == ("error", 2)
    assert "demo-cpu" in found["do"]


def test_lists_are_readable():
    """The lists name the demo recipe and say why there is no GPU, without a server."""
    assert "demo-cpu" in dflash("recipes").stdout
    assert "demo-cpu" in [json.loads(line)["name"] for line in dflash("recipes", "--json").stdout.splitlines()]
    assert "no server is running" in dflash("ps").stderr
    gpus = dflash("gpus")
    assert gpus.returncode == 0
    assert gpus.stdout


@pytest.mark.parametrize("closing", [">&-", ">/dev/full"])
def test_closed_or_full_stream_gives_no_traceback(closing):
    """Started by something that closes its streams, or with a full disk behind stdout."""
    script = f"{sys.executable} -m dflash_tui plan demo-cpu {closing}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("buffered", ["", "1"])
def test_unwritable_output_gives_one_line_error(buffered):
    """Whether Python writes it at once or when it ends, and also where the error is what cannot be written."""
    script = f"{sys.executable} -m dflash_tui recipes --json >/dev/full"
    env = os.environ | {"PYTHONUNBUFFERED": buffered}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env=env)
    assert done.returncode in {1, 2}
    assert done.stderr.startswith("dflash-tui: error: ")
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_folders_that_cannot_be_written_are_named(folders):
    """HOME on a read-only disk, or a file where a folder should be."""
    (folders / "data").write_text("not a folder")
    done = dflash("up", "demo-cpu")
    assert done.returncode == 4
    assert str(folders / "data") in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_pipe_ends_command_quietly():
    """`dflash-tui plan demo-cpu | head -1` leaves no traceback."""
    script = f"{sys.executable} -m dflash_tui recipes --json | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_code_uses_no_shell_eval_or_pickle():
    """Programs are started from lists of words, YAML is read as plain values, and nothing unpickles or evaluates."""
    never = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "eval", "exec"}
    never |= {"asyncio.create_subprocess_shell", "yaml.unsafe_load", "yaml.full_load", "tempfile.mktemp"}
    seen = 0
    for path in sorted(Path(dflash_tui.__file__).parent.rglob("*.py")):
        for node in ast.walk(parse_file(path)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", "")}
                assert not names & {"pickle", "shelve", "marshal", "dill"}, path
            if isinstance(node, ast.Call):
                seen += 1
                assert ast.unparse(node.func) not in never, (path, node.lineno)
                assert not any(word.arg == "shell" for word in node.keywords), (path, node.lineno)
    assert seen > 5000


def test_tests_named_in_security_md_exist():
    """SECURITY.md says which test shows what."""
    root = Path(__file__).parents[1]
    named = set(re.findall(r"`(tests/[^`]+)`", (root / "SECURITY.md").read_text(encoding="utf-8")))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (root / name).is_file()] == []
