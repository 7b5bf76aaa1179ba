"""How the code is laid out: no import cycle, no folder that grows without end, and each class name once."""

import ast
import functools
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dflash_tui
from tests.support.source_trees import parse_file, parse_source

PACKAGE = Path(dflash_tui.__file__).parent
MOST_MODULES = 18
MOST_LINES = 400
# Words that say how a value was come by, or nothing of it: a name is a noun of the field (docs/contributing.md).
BARE_NAMES = frozenset(
    [
        "asked",
        "each",
        "found",
        "given",
        "got",
        "held",
        "it",
        "kept",
        "known",
        "made",
        "one",
        "rest",
        "said",
        "seen",
        "shown",
        "spoken",
        "thing",
        "things",
        "told",
    ]
)
ALLOWED_BARE_NAMES = {("engines.patching.status", "found"): "a key of what `dflash-tui patch verify --json` prints"}


@functools.cache
def parse_modules() -> dict[str, ast.Module]:
    """Return the tree of each module; not of scripts that an engine's Python runs, which nothing here imports."""
    return {
        ".".join(["dflash_tui", *path.relative_to(PACKAGE).with_suffix("").parts]): parse_file(path)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "__init__.py" and "in_engine" not in path.parts
    }


def imports_of(tree: ast.Module) -> set[str]:
    """The modules of ours that a module imports, at its top or inside a function, but not for its types alone."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & parse_modules().keys()


def test_no_module_imports_itself_by_way_of_others():
    graph = {name: imports_of(tree) for name, tree in parse_modules().items()}
    assert sum(map(len, graph.values())) > 500
    try:
        order = [*TopologicalSorter(graph).static_order()]
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
    assert len(order) == len(parse_modules())


def test_no_folder_has_more_modules_than_one_can_look_through():
    counts = Counter(name.rpartition(".")[0] for name in parse_modules())
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_no_module_has_more_lines_than_one_reads_at_a_time():
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {path.name: length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_unit_tests_need_no_benchmark():
    """They are quick, and a script that measures something may change without them."""
    folder = Path(__file__).parent / "unit"
    assert [path for path in folder.rglob("*.py") if "tests.benchmarks" in path.read_text("utf-8")] == []


def test_each_public_class_name_exists_once():
    """So that a name that is read somewhere leads to one class."""
    places = defaultdict(list)
    for name, tree in parse_modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert len(places) > 200
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_every_package_says_what_it_is_for_and_the_page_on_architecture_names_it():
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = [path.parent for path in sorted(PACKAGE.glob("*/__init__.py"))]
    assert len(packages) >= 15
    for package in packages:
        assert ast.get_docstring(parse_file(package / "__init__.py")), package
        assert f"| `{package.name}` | " in page


def list_bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of all that a module binds: variables, parameters, fields and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("found = look()", ["found"]),
        ("def read(known, *, given=1): pass", ["given", "known"]),
        ("rates = [one.rate for one in rates]", ["one", "rates"]),
        ("if (told := read()): pass", ["told"]),
        ("self._kept: dict[str, int] = {}", ["_kept"]),
        ("match path:\n    case [first, *rest]: pass", ["first", "rest"]),
        ("known_flags = read(found=1)", ["known_flags"]),
    ],
)
def test_what_counts_as_a_name(source, names):
    assert sorted(name for _, name in list_bound_names(parse_source(source))) == names


def test_names_say_what_a_value_is():
    """Not `found` or `known`, but `matches` or `flags`; an adjective before a noun, as in `known_flags`, is fine."""
    package, count, bare, allowed = PACKAGE.parent, 0, [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for line, name in list_bound_names(parse_file(path)):
            count += 1
            if name.strip("_") not in BARE_NAMES:
                continue
            if (module, name) in ALLOWED_BARE_NAMES:
                allowed.add((module, name))
            else:
                bare.append(f"{path.relative_to(package)}:{line}: {name}")
    assert count > 10_000
    assert bare == []
    assert allowed == ALLOWED_BARE_NAMES.keys()
