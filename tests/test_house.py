"""What keeps the packages easy to find one's way in: no import cycle, unique class names, folders of a readable size."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dflash_tui

ROOT = Path(dflash_tui.__file__).parent
LARGEST_FOLDER = 18


@cache
def sources() -> dict[str, ast.Module]:
    """Return the syntax tree of every module of dflash_tui by its dotted name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the modules of dflash_tui that a module imports, inside of functions and for types only as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "relative imports cannot be found by grep"
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in sources() else node.module for name in inner)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_import_cycle():
    """No module reaches itself by way of what it imports, deferred imports included."""
    graph = {name: {other for other in imports(tree) if other in sources()} for name, tree in sources().items()}
    assert sum(map(len, graph.values())) > 800
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"{' -> '.join(error.args[1])}")


def test_each_public_class_name_exists_once():
    """A name found by grep is the one that was meant; scripts that run in an engine share nothing with us."""
    homes = defaultdict(list)
    for module, tree in sources().items():
        if not module.startswith("dflash_tui.in_engine"):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(module)
    assert len(homes) > 150
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_no_folder_is_larger_than_one_can_read():
    """Eighteen names fit on a screen; `__init__` is not counted."""
    folders = Counter(path.parent.relative_to(ROOT) for path in ROOT.rglob("*.py") if path.name != "__init__.py")
    assert {str(folder): count for folder, count in folders.items() if count > LARGEST_FOLDER} == {}
