"""What README and docs say exists: commands that the parser takes, keys that are bound, links that lead somewhere."""

import contextlib
import inspect
import io
import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.widgets import OptionList

from dflash_tui.cli.main import main
from dflash_tui.cli.parser import COMMANDS, parse_words
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Recipe

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += [ROOT / "recipes" / "README.md", ROOT / "patches" / "README.md"]
KEYS = {"/": "slash", "?": "question_mark", "!": "exclamation_mark", "+": "plus", "-": "minus"}
KEYS |= {"[": "left_square_bracket", "]": "right_square_bracket"}
DIALOG = "dialogs.basic:Dialog"
# The modules whose screens a heading of docs/keys.md is about, below dflash_tui.tui.
SCREENS = {
    "Everywhere": ("app", "screens.launch", "screens.run:RunScreen"),
    "Launch": ("screens.launch",),
    "A new pair, from the launch screen": ("dialogs.drafters", DIALOG),
    "Options, from the launch screen": ("dialogs.options", DIALOG),
    "Patches, from the launch screen": ("dialogs.patches", DIALOG),
    "Hosts, from the launch screen": ("dialogs.basic:ChoiceDialog", "dialogs.basic:Confirm", DIALOG),
    "Doctor": ("dialogs.doctor:Doctor", "dialogs.doctor:ReasonField", DIALOG),
    "A recipe that is not shipped": ("dialogs.basic:TrustDialog", DIALOG),
    "A running server": ("screens.run:RunScreen", "screens.run:ViewScreen"),
    "Talking with a server": ("screens.chat",),
    "The log": ("widgets.log_pane",),
    "After a failure": ("dialogs.doctor:RemedyDialog", DIALOG),
    "Runs": ("dialogs.runs:RunList", DIALOG),
    "A recording": ("screens.run:ReplayScreen",),
    "Planning an A/B": ("dialogs.experiments:NewExperiment", "dialogs.experiments:ExperimentDialog", DIALOG),
    "Planning a tune": ("dialogs.experiments:NewTune", "dialogs.experiments:ExperimentDialog", DIALOG),
    "An A/B and its verdict": ("screens.experiment", "screens.verdict"),
    "Two arms side by side": ("screens.playback:PlaybackScreen",),
}


def code_of(page: Path) -> Iterator[str]:
    """The lines of shell in a page, and what stands in backquotes between its words."""
    prose = []
    in_shell = in_block = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            in_shell, in_block = line == "```sh", not in_block
        elif in_shell:
            yield line
        elif not in_block:
            prose.append(line)
    yield from re.findall(r"`([^`]+)`", "\n".join(prose))


def commands_of(page: Path) -> Iterator[list[str]]:
    """The words after `dflash-tui`; `a | b` and `[…]` are ways to write several commands or one with options."""
    for code in code_of(page):
        for part in re.sub(r"\s#.*| +[|>] .*|[\[\]…]", "", " ".join(code.split())).split("&&"):
            words = shlex.split(part)
            if words and words[0] == "uvx":
                words = words[words.index("dflash-tui") :]
            if words and Path(words[0]).name == "dflash-tui" and "COMMAND" not in words:
                yield ["1" if word == "PID" else word for word in words[1:]]


def test_every_docs_command_is_parsed(monkeypatch):
    """A command that a page names is parsed, and a recipe that it names is there."""
    monkeypatch.chdir(ROOT)
    refused = []
    for words in (words for page in PAGES for words in commands_of(page)):
        try:
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                args = parse_words(words)
                if args.far_words:  # what another host is to run
                    args = parse_words(args.far_words)
        except SystemExit as end:
            named_only = len(words) == 1 and words[0] in COMMANDS  # `dflash-tui up` in a sentence
            refused += [words] if end.code and not named_only else []
            continue
        recipe = getattr(args, "recipe", None) or ""
        if (
            recipe.islower()
            and not recipe.startswith("my-")
            and not isinstance(recipe_loader.find_recipe(recipe), Recipe)
        ):
            refused.append(words)
    assert refused == []


# What looks and changes nothing, with no server, engine or network.
HARMLESS = {"recipes", "gpus", "plan", "ps", "runs", "disk", "completion", "help"}
NEEDS_MORE = {"my-pair", "--for", "--target", "--peer"}


def test_harmless_docs_commands_run(folders, monkeypatch, capsys):
    """As they stand, on a machine without a GPU."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_CACHE", str(folders / "hub"))
    monkeypatch.setenv("UV_CACHE_DIR", str(folders / "uv"))
    commands = {tuple(words) for page in PAGES for words in commands_of(page) if words and words[0] in HARMLESS}
    # The rest has a word to be filled in, a recipe of the reader's, or asks the hub or another host.
    shown = sorted(words for words in commands if not any(map(str.isupper, words)) and not {*words} & NEEDS_MORE)
    assert len(shown) > 30
    refused = [(words, capsys.readouterr().err) for words in shown if main([*words])]
    assert refused == []


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_the_service_key_stays_private(tmp_path):
    """The lines about it run as they stand, the last one again in another shell."""
    lines = [line for line in code_of(ROOT / "docs" / "life-cycle.md") if "dflash-tui/service.env" in line]
    home = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    for script in (lines, lines[-1:]):
        words = ["bash", "-ec", "\n".join([*script, "printenv VLLM_API_KEY"])]
        done = subprocess.run(words, env=home, capture_output=True, text=True, check=True, timeout=60)
        key = done.stdout.splitlines()[-1]
        file = tmp_path / ".config" / "dflash-tui" / "service.env"
        assert (file.read_text("utf-8"), stat.S_IMODE(file.stat().st_mode)) == (f"VLLM_API_KEY={key}\n", 0o600)
        assert len(key) == 48


def test_uninstall_docs_cover_units_and_install_methods(folders):
    """The line about the units runs as it stands; the ways are those of the README."""
    units = folders / "config" / "systemd" / "user"
    units.mkdir(parents=True)
    (units / "dflash-tui-demo-cpu.service").touch()
    section = (ROOT / "docs" / "life-cycle.md").read_text("utf-8").partition("## Uninstall")[2].partition("\n## ")[0]
    (line,) = [line for line in section.splitlines() if line.startswith("rm ") and ".service" in line]
    (folders / ".config").symlink_to("config")
    home = {"PATH": os.environ["PATH"], "HOME": str(folders)}
    subprocess.run(["bash", "-ec", line], env=home, check=True, timeout=60)
    assert [*units.iterdir()] == []
    for removal in ("uv tool uninstall dflash-tui", "pipx uninstall dflash-tui", "rm -r .venv"):
        assert removal in section


def test_there_are_commands_to_look_at():
    assert len([*commands_of(ROOT / "README.md")]) >= 8
    assert len([*commands_of(ROOT / "docs" / "commands.md")]) >= 50


def test_every_command_is_in_commands_md():
    named = {words[0] for words in commands_of(ROOT / "docs" / "commands.md") if words}
    shown = {name for name, command in COMMANDS.items() if command.group}
    assert shown - named == set(), "these commands are not in docs/commands.md"


def keys_of_page() -> dict[str, set[str]]:
    """The keys in the lists of docs/keys.md, by heading."""
    found: dict[str, set[str]] = {}
    heading = ""
    for line in (ROOT / "docs" / "keys.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif line.startswith("* `"):
            keys = re.findall(r"`([^`]+)`", line.split(": ")[0])
            if " to " in line.split(": ")[0]:
                keys = [str(number) for number in range(int(keys[0]), int(keys[1]) + 1)]
            found.setdefault(heading, set()).update(KEYS.get(key, key) for key in keys)
    return found


def bindings_of(names: tuple[str, ...]) -> list[tuple[set[str], Binding]]:
    """What the screens of these modules, or these classes of them, bind."""
    found = []
    for name in names:
        place, _, wanted = name.partition(":")
        module = import_module(f"dflash_tui.tui.{place}")
        for each in vars(module).values():
            if inspect.isclass(each) and each.__module__ == module.__name__ and wanted in {"", each.__name__}:
                bindings = [b for b in vars(each).get("BINDINGS", ()) if isinstance(b, Binding)]
                found += [(set(binding.key.split(",")), binding) for binding in bindings]
    return found


def test_documented_keys_match_bound_keys():
    page = keys_of_page()
    assert set(page) == set(SCREENS)
    list_keys = {
        key for binding in OptionList.BINDINGS if isinstance(binding, Binding) for key in binding.key.split(",")
    }
    missing = []
    for heading, modules in SCREENS.items():
        bindings = bindings_of(modules)
        bound = set().union(*(keys for keys, _ in bindings))
        # In a list, enter is the list's own.
        missing += [
            (heading, key, "is not bound")
            for key in page[heading] - bound - (list_keys if heading == "Runs" else set())
        ]
        if heading != "Everywhere":
            known = (
                page[heading] | page["Everywhere"] | (page["A running server"] if heading == "A recording" else set())
            )
            missing += [(heading, binding.key, "is not on the page") for keys, binding in bindings if not keys & known]
    assert missing == []


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are on the web."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere():
    """A file of ours that a page links to is there, with the heading."""
    broken = []
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))]
    for page, target in links:
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors_of(file)):
            broken.append((page.name, target))
    assert broken == []


def test_every_module_named_in_docs_exists():
    """A path of ours in backquotes, such as `planning/request.py` or `launch/planner`, is a file or a folder."""
    pages = [page for page in PAGES if page.name != "SECURITY.md"]  # test_guards.py reads it
    tops = {path.name for path in (ROOT / "dflash_tui").iterdir() if path.is_dir()} | {"tests", "dflash_tui"}
    missing = []
    for page in pages:
        for name in re.findall(r"`((?:\w+/)+[\w.]*)`", page.read_text(encoding="utf-8")):
            if name.partition("/")[0] in tops and "NAME" not in name:
                places = [top / f"{name}{end}" for top in (ROOT, ROOT / "dflash_tui") for end in ("", ".py")]
                missing += [] if any(place.exists() for place in places) else [(page.name, name)]
    assert missing == []


def test_the_readme_is_short():
    """It is read by everybody; the rest is on pages of its own."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 800


def test_every_code_name_in_docs_exists():
    """A name in backquotes, such as `build_tiles`, `LaunchRequest` or `KNOWN_FAILURES`, is in some file of ours."""
    files = [
        path for top in ("dflash_tui", "tests", "recipes", "patches") for path in (ROOT / top).rglob("*.[py][ya]*")
    ]
    code = "\n".join(path.read_text("utf-8", errors="replace") for path in files if path.name != Path(__file__).name)
    names = set(re.findall(r"\w+", code)) | {path.stem for path in files}
    missing = [
        (page, name)
        for page in ("architecture.md", "contributing.md", "glossary.md")
        for name in re.findall(r"`(\w+)(?:\(.*?\))?`", (ROOT / "docs" / page).read_text(encoding="utf-8"))
        if ("_" in name.removeprefix("__").rstrip("_") or re.search(r"[a-z][A-Z]|[A-Z]{3}", name)) and name not in names
    ]
    assert missing == []
