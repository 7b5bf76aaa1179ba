"""The style sheet names classes as text, which no rename and no type checker follows."""

import importlib
import pkgutil
import re
from pathlib import Path

from textual.dom import DOMNode

from dflash_tui import tui


def _names(kind: type[DOMNode]) -> set[str]:
    return {kind.__name__}.union(*(_names(child) for child in kind.__subclasses__()))


def test_every_style_sheet_type_is_class():
    for module in pkgutil.walk_packages(tui.__path__, f"{tui.__name__}."):
        importlib.import_module(module.name)
    sheet = "".join(path.read_text() for path in Path(tui.__file__).parent.rglob("*.tcss"))
    sheet = re.sub(r"/\*.*?\*/|\{[^}]*\}", "", sheet, flags=re.DOTALL)
    assert set(re.findall(r"\b[A-Z]\w+", sheet)) - _names(DOMNode) == set()
