"""Syntax trees of source files."""

import ast
import gc
from pathlib import Path


def parse_source(source: str | bytes) -> ast.Module:
    """Return the tree of a source; nothing is collected meanwhile.

    A finalizer that warns while a tree is built makes CPython 3.11 end with "AST constructor recursion depth mismatch".
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if was_enabled:
            gc.enable()


def parse_file(path: Path) -> ast.Module:
    """Return the tree of a file."""
    return parse_source(path.read_bytes())
