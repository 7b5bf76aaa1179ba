"""Run by an engine's own Python: imports modules, some from other files than their own, and says what fails.

Usage: import_check.py FILE JSON, where JSON is {module: file, or "" for its own}
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import pathlib
import sys
from collections.abc import Sequence
from types import ModuleType


class Instead(importlib.abc.MetaPathFinder):
    """Finds the named modules in the given files; a package keeps its own folder for what is inside it."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return where `name` is, for one of ours."""
        if not self.files.get(name):
            return None
        own = importlib.machinery.PathFinder.find_spec(name, path, target)
        inside = own.submodule_search_locations if own else None
        loader = importlib.machinery.SourceFileLoader(name, self.files[name])
        return importlib.util.spec_from_file_location(
            name, self.files[name], loader=loader, submodule_search_locations=inside
        )


def failures(files: dict[str, str]) -> dict[str, str]:
    """Return for each module the error of its import; empty for one that imports."""
    sys.meta_path.insert(0, Instead(files))
    errors = {}
    for name in files:
        try:
            importlib.import_module(name)
            errors[name] = ""
        except BaseException as error:
            errors[name] = f"{type(error).__name__}: {error}"
    return errors


if __name__ == "__main__":
    # Into a file: vLLM prints what it likes while it is imported.
    pathlib.Path(sys.argv[1]).write_text(json.dumps(failures(json.loads(sys.argv[2]))), encoding="utf-8")
