"""Run by an engine's own Python: imports modules, and says which of them fail.

Usage: import_check.py FILE JSON, where JSON is a list of modules
"""

import importlib
import json
import pathlib
import sys


def failures(modules: list[str]) -> dict[str, str]:
    """Return the error of each module whose import fails."""
    errors = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            errors[name] = f"{type(error).__name__}: {error}"
    return errors


if __name__ == "__main__":
    # Into a file: vLLM prints what it likes while it is imported.
    pathlib.Path(sys.argv[1]).write_text(json.dumps(failures(json.loads(sys.argv[2]))), encoding="utf-8")
