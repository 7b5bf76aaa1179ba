"""How the code is laid out: no import cycle, and each class name once."""

import ast
import functools
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import dflash_tui
from tests.support.source_trees import parse_file

PACKAGE = Path(dflash_tui.__file__).parent


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


def test_modules_have_no_import_cycle():
    graph = {name: imports_of(tree) for name, tree in parse_modules().items()}
    assert sum(map(len, graph.values())) > 500
    try:
        order = [*TopologicalSorter(graph).static_order()]
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
    assert len(order) == len(parse_modules())


def test_each_public_class_name_exists_once():
    """So that a name that is read somewhere leads to one class."""
    places = defaultdict(list)
    for name, tree in parse_modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert len(places) > 200
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_every_package_has_docstring_and_architecture_entry():
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = [path.parent for path in sorted(PACKAGE.glob("*/__init__.py"))]
    assert len(packages) >= 15
    for package in packages:
        assert ast.get_docstring(parse_file(package / "__init__.py")), package
        assert f"| `{package.name}` | " in page
