"""What `--json` prints is of its format, for every command, and no field of a version is taken away."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dflash_tui.cli.command_parser import CommandParser
from dflash_tui.cli.main import main
from dflash_tui.cli.parser import build_parser
from dflash_tui.common import paths
from dflash_tui.events import Exited
from dflash_tui.runs.run import Run
from tests import DATA, ROOT
from tests.cli.test_verify_output import reported
from tests.cli.test_why import kept
from tests.support import json_formats
from tests.support.experiment_factories import boots, told, written
from tests.support.json_formats import build_schema
from tests.support.json_lines import check_lines
from tests.support.preflight_situations import engine_in

FIELDS = DATA / "json_fields.json"
# What a server or an engine prints is held against its schema where a test has one.
ELSEWHERE = {
    "tests/server/test_up_exit_codes.py": ["up"],
    "tests/cli/test_shared_recipes.py": ["recipes add", "recipes import", "recipes update"],
    "tests/server/test_recorder.py": ["bench", "attach"],
    "tests/cli/test_chat_command.py": ["chat"],
    "tests/cli/test_verify_command.py": ["verify"],
    "tests/server/test_experiments.py": ["ab"],
    "tests/server/test_tunes.py": ["tune"],
    "tests/server/test_inventory.py": ["engine adopt", "engine inspect", "engine remove"],
    "tests/patching/test_patch_commands.py": ["patch status", "patch apply", "patch diff"],
}
ALIKE = {"verify --lossless", "tune keep", "engine install", "patch revert", "patch verify"}  # of types of the others


def list_commands(parser: CommandParser, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the commands, with their actions, that take `--json`."""
    if words and "--json" in parser.list_options():
        yield " ".join(words)
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for name, command in action.choices.items():
                yield from list_commands(command, (*words, name))


@pytest.fixture
def home(folders, monkeypatch) -> Run:
    """A home with a run that failed, an engine, a broken recipe and an experiment with a report."""
    monkeypatch.setenv("HF_HUB_CACHE", str(folders / "hub"))
    monkeypatch.setenv("UV_CACHE_DIR", str(folders / "uv"))
    (folders / "hub" / "models--a--b").mkdir(parents=True)
    engine_in(paths.engines_folder() / "vllm-0.33.0-12345678")
    paths.user_recipes_folder().mkdir(parents=True)
    (paths.user_recipes_folder() / "broken.yaml").write_text("title: [")
    report = reported(None)
    written(report.design, told(report.design, boots(report.design, (10.0, 10.0))), report)
    return kept("fail_max_model_len_kv", Exited(1795224300.0, 1))


def test_every_json_command_has_format_and_row():
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    formats = {name: json_formats.find_format(name) for name in list_commands(build_parser())}
    assert [name for name, format_ in formats.items() if not format_] == []
    assert json_formats.FORMATS.keys() - formats.values() == {
        "error",
        "ps --for",
        "stop --orphans",
        "verify --lossless",
    }
    rows = [f"| `{name}` | {format_.version} |" for name, format_ in json_formats.FORMATS.items()]
    assert [row for row in rows if row not in page] == []


CASES = {
    "recipes": "recipes",
    "recipes check": "recipes check",
    "recipes show": "recipes show gemma-4-31b",
    "recipes new": "recipes new mine",
    "recipes catalogue": "recipes catalogue",
    "plan": "plan gemma-4-31b --gpu gb10",
    "doctor": "doctor",
    "gpus": "gpus",
    "disk": "disk",
    "engine list": "engine list",
    "ps": "ps --all",
    "runs": "runs",
    "runs prune": "runs prune --older-than 0s",
    "logs": "logs",
    "stop": "stop {run.id}",
    "why": "why",
    "ps --for": "ps --for curl",
    "stop --orphans": "stop --orphans",
    "runs history": "runs history",
    "export": "export -o {run.folder}/out.zip",
    "service": "service demo-cpu",
    "replay": "replay sample --every 60",
    "ab list": "ab list",
    "ab play": "ab play --svg {run.folder}/ab.svg",
    "report": "report",
    "error": "plan nowhere",
}
SILENT = {"stop --orphans", "runs history"}  # nothing outlived a server here, and no server came up


@pytest.mark.parametrize("name", CASES)
def test_json_lines_match_schema(name, home, capsys):
    main([*CASES[name].format(run=home).split(), "--json"])
    lines = capsys.readouterr().out.splitlines()
    assert lines or name in SILENT
    check_lines(name, lines)


def test_the_rest_is_held_elsewhere():
    """By the tests that have a server or an engine."""
    named = {name for names in ELSEWHERE.values() for name in names}
    assert named | ALIKE == json_formats.FORMATS.keys() - CASES.keys()
    for file, names in ELSEWHERE.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        assert [name for name in names if f'check_lines("{name}", ' not in text] == []


def list_fields() -> dict[str, dict[str, Any]]:
    """Return the version of each format with its types, and the fields of each type."""
    formats: dict[str, Any] = {}
    fields: dict[str, list[str]] = {}
    for name, format_ in json_formats.FORMATS.items():
        parts = build_schema(name)["$defs"]
        types = {kind: sorted(part["properties"]) for kind, part in parts.items() if "properties" in part}
        formats[name] = {"version": format_.version, "types": sorted(types)}
        fields |= types
    return {"formats": formats, "fields": fields}


def test_published_format_version_never_loses_field(request):
    """One may be added; `--update-plans` writes them down. A format that loses one gets a new version."""
    now = list_fields()
    if request.config.getoption("--update-plans"):
        FIELDS.write_text(json.dumps(now, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    then, gone = json.loads(FIELDS.read_text(encoding="utf-8")), []
    for name, format_ in then["formats"].items():
        if format_["version"] == now["formats"][name]["version"]:
            for kind in format_["types"]:
                gone += [(name, kind, each) for each in set(then["fields"][kind]) - {*now["fields"].get(kind, ())}]
    assert gone == []
