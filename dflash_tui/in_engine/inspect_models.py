"""Run by an engine's own Python: make vLLM inspect model classes and cache the results before a server needs them.

A server starts a process per class, which imports everything again; here all classes share one import. Usage:
inspect_models.py FILE JSON, where JSON is a list of lists: the possible architecture names of each model. The answer
has, for each list, the file with vLLM's result, or an error.
"""

import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def inspect(names: list[str]) -> dict[str, Any]:
    """Make vLLM inspect the first of these architectures that it knows, and cache the result."""
    from vllm import envs
    from vllm.model_executor.models.registry import ModelRegistry

    name = next((name for name in names if name in ModelRegistry.models), "")
    if not name:
        return {"error": f"this vLLM has no {' or '.join(names)}"}
    model = ModelRegistry.models[name]
    if not hasattr(model, "module_name"):
        return {"error": f"{name} is registered by a plugin"}
    model.inspect_model_cls()
    name = f"{model.module_name}-{model.class_name}".replace(".", "-")
    entry = pathlib.Path(envs.VLLM_CACHE_ROOT) / "modelinfos" / f"{name}.json"
    if not entry.is_file():
        return {"error": f"vLLM wrote nothing to {entry}"}
    return {"entry": str(entry)}


def call(function: Callable[[], T]) -> T:
    """Call it in this process, which may use CUDA where a server's own may not."""
    return function()


def answer(models: list[list[str]]) -> list[dict[str, Any]]:
    """Return the result of each model; a failed one does not hide the others."""
    from vllm.model_executor.models import registry
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    if hasattr(registry, "_run_in_subprocess"):  # else each class gets its own process, as in a server
        registry._run_in_subprocess = call
    results = []
    for names in models:
        try:
            results.append(inspect(names))
        except BaseException as error:
            results.append({"error": f"{type(error).__name__}: {error}"})
    return results


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # Into a file, since vLLM may print anything while it is imported.
    pathlib.Path(sys.argv[1]).write_text(json.dumps(answer(json.loads(sys.argv[2]))), encoding="utf-8")
