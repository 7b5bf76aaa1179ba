"""Recipe -> Plan: the exact command, environment, patches and models of a launch. Pure."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

import msgspec

from dflash_tui.core import paths
from dflash_tui.core.recipe import EngineSpec, FlagValue, Mode, Recipe

HOST = "127.0.0.1"
# Asked once a second, these would make up most of the log; the flag is in every release that has DFlash.
_QUIET = ("--disable-access-log-for-endpoints", "/health,/metrics")


class Plan(msgspec.Struct, frozen=True):
    """What a launch will do. `env` is what is added to the caller's environment; paths are absolute.

    `build_script` and `models_folder` are empty when the models come from elsewhere.
    """

    recipe: str
    title: str
    synthetic: str
    mode: Mode
    target: str
    drafter: str
    num_speculative_tokens: int
    served_name: str
    port: int
    engine_folder: str
    argv: tuple[str, ...]
    env: dict[str, str]
    patches: tuple[str, ...]
    build_script: str = ""
    models_folder: str = ""
    bench_scale: float = 1.0
    on_cpu: bool = False
    warnings: tuple[str, ...] = ()


def make(
    recipe: Recipe,
    *,
    mode: Mode | None = None,
    port: int | None = None,
    num_speculative_tokens: int | None = None,
) -> Plan:
    """Return the plan of launching `recipe`; the arguments replace what the recipe says."""
    mode = mode or recipe.mode
    port = port or recipe.port
    tokens = num_speculative_tokens or recipe.drafter.num_speculative_tokens
    engine = engine_folder(recipe.engine)
    target, drafter, script, models = recipe.target.model, recipe.drafter.model, "", ""
    if recipe.build:
        script = str(paths.bundled("recipes") / recipe.build.script)
        folder = paths.models() / f"{recipe.name}-{_digest(Path(script).read_bytes())}"
        models, target, drafter = str(folder), str(folder / target), str(folder / drafter)
    speculation = {
        "method": "dflash",
        "model": drafter,
        "num_speculative_tokens": tokens,
        **recipe.drafter.config,
    }
    argv = [str(engine / "bin" / "vllm"), "serve", target, "--served-model-name", recipe.target.served_name]
    argv += ["--host", HOST, "--port", str(port), "--speculative-config", json.dumps(speculation)]
    argv += _QUIET
    argv += ["--enforce-eager"] if mode is Mode.EAGER else []
    argv += [part for name, value in recipe.flags.items() for part in _flag(name, value)]
    return Plan(
        recipe=recipe.name,
        title=recipe.title,
        synthetic=recipe.synthetic,
        mode=mode,
        target=target,
        drafter=drafter,
        num_speculative_tokens=tokens,
        served_name=recipe.target.served_name,
        port=port,
        engine_folder=str(engine),
        argv=tuple(argv),
        env={name: value.replace("{cache}", str(paths.cache())) for name, value in recipe.env.items()},
        patches=recipe.patches,
        build_script=script,
        models_folder=models,
        bench_scale=recipe.bench_scale,
        on_cpu=recipe.engine.torch_backend == "cpu",
        warnings=recipe.warnings,
    )


def engine_folder(spec: EngineSpec) -> Path:
    """Return the folder of the engine for `spec`; another spec has another folder."""
    name = spec.distribution
    return paths.engines() / f"{name}-{spec.vllm}-{_digest(msgspec.json.encode(spec))}"


def command(plan: Plan) -> str:
    """Return the command as one would type it into a shell, one flag per line."""
    words = list(plan.argv)
    lines = [shlex.join(words[:3])]
    for word in words[3:]:
        if word.startswith("--"):
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n  ".join([*(f"{k}={shlex.quote(v)}" for k, v in plan.env.items()), *lines])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]


def _flag(name: str, value: FlagValue) -> list[str]:
    """Return the words of one flag: a switch for true, JSON for a mapping, several words for a list."""
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value)]
    if isinstance(value, list):
        return [f"--{name}", *value]
    return [f"--{name}", str(value)]
