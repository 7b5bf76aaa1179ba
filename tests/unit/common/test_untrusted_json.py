"""No thread ever sees a type that msgspec is halfway through getting to know."""

import ast
import builtins
import importlib
import pkgutil
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec

import dflash_tui
from tests.support.source_trees import parse_file

# What reads text into a type, and the place of the type among its arguments.
READERS = {"decode": 1, "convert": 1, "load": 1, "load_yaml": 1, "convert_yaml": 2, "read_own_json": 1, "Decoder": 0}
# Prints the types that msgspec has looked at when all modules are imported: it asks this function once for each.
LOOKED_AT = """
import importlib, importlib.util, sys
where = importlib.util.find_spec("msgspec").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("msgspec._utils", where + "/_utils.py")
sys.modules["msgspec._utils"] = ours = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ours)
asked, seen = ours.get_class_annotations, []
ours.get_class_annotations = lambda kind: (seen.append(kind), asked(kind))[1]
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*(f"{kind.__module__}.{kind.__qualname__}" for kind in seen))
"""


def modules() -> list[ModuleType]:
    found = (each.name for each in pkgutil.walk_packages(dflash_tui.__path__, "dflash_tui."))
    return [importlib.import_module(name) for name in found if not name.endswith("__main__")]


def read_types(module: ModuleType) -> Iterator[type[msgspec.Struct]]:
    """Yield the types that calls in a module read text into."""
    for node in ast.walk(parse_file(Path(str(module.__file__)))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READERS:
            place = READERS[node.func.attr]
            for kind in [*(word.value for word in node.keywords if word.arg == "type"), *node.args[place : place + 1]]:
                if all(part.id in vars(module) or part.id in vars(builtins) for part in names(kind)):
                    yield from structs(eval(ast.unparse(kind), vars(module)))


def names(kind: ast.expr) -> list[ast.Name]:
    return [part for part in ast.walk(kind) if isinstance(part, ast.Name)]


def structs(kind: object) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for part in typing.get_args(kind):
        yield from structs(part)


def test_msgspec_learns_read_types_at_import():
    """What msgspec would get to know at the first reading, it could get to know in two threads at once, and dies."""
    ours = modules()
    read = {f"{kind.__module__}.{kind.__qualname__}" for module in ours for kind in read_types(module)}
    assert {"dflash_tui.planning.recipes.recipe.Recipe", "dflash_tui.engines.environments.Engine"} < read
    assert len(read) > 20
    words = [sys.executable, "-c", LOOKED_AT, *(module.__name__ for module in ours)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert read - set(done.stdout.split()) == set()
