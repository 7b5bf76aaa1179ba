"""Check with the engine's own Python that patched modules still import, before they are written."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dflash_tui.common.errors import EngineError, PatchError
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.engines import engine_python
from dflash_tui.engines.environments import Engine


def check_imports(engine: Engine, texts: Mapping[str, bytes]) -> str:
    """Import the new texts (by path in the `vllm` package) in place of the files, which are not touched.

    Returns a warning: why the check could not be made, or an empty string. A module that does not import here as it
    was published either (without a GPU, say) tells nothing about the patch.

    Raises:
        PatchError: a module imports as published, and not with the patch.
        Cancelled: the caller was cancelled.
    """
    with tempfile.TemporaryDirectory(prefix="dflash-") as folder:
        staged = {}
        for number, (path, data) in enumerate(texts.items()):
            staged[_module(path)] = str(Path(folder) / f"{number}.py")
            Path(staged[_module(path)]).write_bytes(data)
        failed = {name: why for name, why in _import(engine, staged).items() if why}
        if not failed:
            return ""
        plain = _import(engine, dict.fromkeys(staged, ""))
    for name, why in failed.items():
        if not plain.get(name):
            raise PatchError(
                f"{name} no longer imports with the patch", evidence=clean_line(why)[:500], hint="report it"
            )
    name = next(iter(failed))
    reason = clean_line(plain[name])[:200]
    return f"the patched {name} was not tested: it does not import here without the patch either ({reason})"


def _import(engine: Engine, staged: Mapping[str, str]) -> dict[str, str]:
    """Return for each module why it does not import; an engine that cannot be asked imports none."""
    request = msgspec.json.encode(staged).decode()
    try:
        answer = engine_python.run_script(
            engine.python, "import_check.py", request, timeout=engine_python.IMPORT_TIMEOUT
        )
    except EngineError as error:
        return dict.fromkeys(staged, error.evidence or error.what)
    return msgspec.json.decode(answer, type=dict[str, str])


def _module(path: str) -> str:
    return "vllm." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
