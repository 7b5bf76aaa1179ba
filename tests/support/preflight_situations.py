"""Situations that a launch would meet, made by hand."""

from pathlib import Path
from typing import Any

import msgspec

from dflash_tui.engines.environments import Engine
from dflash_tui.engines.model_hub import ModelAvailability
from dflash_tui.launch.preflight.check import Situation
from dflash_tui.machine.gpus import Gpu, GpuProbe
from dflash_tui.machine.hardware import TYPICAL, Hardware
from dflash_tui.planning.plan_builder import ChosenEngine, build_plan
from dflash_tui.planning.recipes import recipe_loader, resolution

GIB = 1 << 30
DESKTOP = Gpu(0, "RTX 5090", "GPU-a", "12.0", Hardware.RTX_5090, memory_total=32 * GIB, memory_used=GIB)
GB10 = Gpu(0, "GB10", "GPU-a", "12.1", Hardware.GB10, memory_total=120 * GIB, memory_used=20 * GIB, unified=True)


def a_gpu(hardware: Hardware, index: int = 0, used: int = 0) -> Gpu:
    """Return a GPU of that class, as large as is typical."""
    typical = TYPICAL[hardware]
    return Gpu(
        index,
        hardware.value,
        uuid=f"GPU-{index}",
        capability=typical.capability,
        hardware=hardware,
        memory_total=typical.memory_total,
        memory_used=used,
        unified=typical.unified,
    )


def situation(
    recipe: str = "gemma-4-26b-a4b",
    *gpus: Gpu,
    engine: Engine | None = None,
    models: tuple[ModelAvailability, ...] = (),
    driver: str = "580.95.05",
    settings: dict[str, Any] | None = None,
    **choices: Any,
) -> Situation:
    """Return what launching `recipe` on `gpus` would meet."""
    hardware = gpus[0].hardware if gpus else Hardware.CPU
    made = resolution.resolve_recipe(recipe_loader.find_recipe(recipe), hardware, settings=settings or {}, **choices)
    plan = build_plan(made, engine=ChosenEngine(Path(engine.folder), engine.patchable) if engine else None)
    return Situation(made, plan, GpuProbe(gpus, driver), gpus, engine, models)


def engine_in(folder: Path, distribution: str = "vllm", vllm: str = "0.33.0", **more: Any) -> Engine:
    """Return an engine in `folder`, finished as far as its marker and its Python can tell, with no vLLM in it."""
    (folder / "lib/python3.11/site-packages/vllm").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to("/bin/false")
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    engine = Engine(str(folder), vllm, distribution, 0.0, 0.0, (), **more)
    (folder / "dflash-engine.json").write_bytes(msgspec.json.encode(engine))
    return engine
