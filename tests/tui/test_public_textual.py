"""The panel uses what Textual documents: no name of its classes that begins with an underscore."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

from textual import widgets
from textual.app import App
from textual.css.stylesheet import Stylesheet
from textual.screen import Screen
from textual.scroll_view import ScrollView

from dflash_tui import tui

WIDGETS = [getattr(widgets, name) for name in vars(widgets)["__all__"]]
KINDS = (App, Screen, Stylesheet, ScrollView, *WIDGETS)


def list_private_names(kind: type) -> set[str]:
    """Return the underscored names of a class of Textual: its methods, and what it sets on itself."""
    names = set(vars(kind))
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(kind)))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            names.add(node.attr)
    return {name for name in names if name.startswith("_") and not name.endswith("__")}


OWNERS = {owner for kind in KINDS for owner in kind.__mro__ if owner.__module__.startswith("textual.")}
PRIVATE = set().union(*map(list_private_names, OWNERS))


def find_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the lines where code takes or sets a private name of Textual, or a class defines a method of that name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE and ast.unparse(node.value) != "os":
            yield node.lineno, node.attr
        elif isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
            yield from ((method.lineno, method.name) for method in methods if method.name in PRIVATE)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("textual."):
            yield from ((node.lineno, part) for part in (node.module or "").split(".") if part.startswith("_"))


def test_the_names_are_found():
    uses = "self.app._exception\nfrom textual._compositor import C\ndef _check_resize(self): pass\nself._lines = []"
    assert [name for _, name in find_uses(ast.parse(uses))] != []
    assert {"_compositor", "_check_resize", "_fatal_error", "_disable_notifications", "_lines"} <= PRIVATE


def test_no_private_name_of_textual_is_used():
    folder = Path(tui.__file__).parent
    uses = [
        f"{path.relative_to(folder)}:{line} {name}"
        for path in sorted(folder.rglob("*.py"))
        for line, name in find_uses(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert uses == []
