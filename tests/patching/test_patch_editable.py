"""An editable install of vLLM: it is judged by its source tree, and cloned with that into a patched engine."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import uv
from msgspec.structs import replace

from dflash_tui.common.errors import PatchError
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import status
from dflash_tui.engines.patching.status import PatchState
from dflash_tui.launch.planner import plan_launch
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.planning import patch_file
from dflash_tui.planning.request import LaunchRequest
from tests.patching.conftest import build, make, tree
from tests.support import wheels

PATCH = "qwen3-next-eagle3"
FILE = "model_executor/models/qwen3_next.py"
TEXTS = {FILE: "", "__init__.py": "", "v1/spec_decode/dflash.py": ""}
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "vllm"
version = "{version}"
[tool.setuptools]
packages = ["vllm"]
"""


@pytest.fixture(scope="module")
def texts() -> Mapping[str, Mapping[str, str]]:
    """The files of a release that needs the patch, and of the first that has it by itself."""
    wanted = {*TEXTS, *patch_file.load_patch(PATCH).paths}
    with wheels.skip_if_unreachable():
        return {version: {path: text or "" for path, text in wheels.read("vllm", version, wanted).items()}
                for version in ("0.23.0", "0.24.0")}  # fmt: skip


def checkout(folder: Path, texts: Mapping[str, str], version: str = "0.23.0") -> Path:
    """Make a source tree of vLLM that says that it is this version."""
    for path, text in texts.items():
        (folder / "vllm" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "vllm" / path).write_text(text)
    (folder / "pyproject.toml").write_text(PROJECT.format(version=version))
    return folder


def noted(folder: Path, source: Path, version: str) -> Engine:
    """An environment with an editable install of a source tree."""
    return replace(build(folder, {}, "vllm", version), package=str(source / "vllm"))


@pytest.mark.index
def test_a_source_tree_is_cloned_and_kept(texts, tmp_path, real_python):
    """By uv and setuptools: tree and environment stay as they were."""
    source = checkout(tmp_path / "with space", texts["0.23.0"])
    install = ["pip", "install", "-q", "--python", str(real_python), "--no-deps", "-e", str(source)]
    subprocess.run([uv.find_uv_bin(), *install], check=True, cwd=tmp_path)
    (real_python / "bin" / "vllm").write_text("#!/bin/sh\n")
    before, inside = tree(source), tree(real_python)
    engine = inventory.adopt_engine(real_python)
    assert (engine.vllm_package, engine.source_tree) == (source / "vllm", source)
    patch = patch_file.load_patch(PATCH)
    found = status.find_patch_status(patch, engine)
    assert found.state is PatchState.NEEDED
    assert "editable" in found.why
    patched = make(engine, patch).engine
    assert (patched.source_tree, patched.patches) == (None, (PATCH,))
    asked = "import importlib.util; print(importlib.util.find_spec('vllm').origin)"
    origin = subprocess.run([patched.python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    assert origin == str(patched.site_packages / "vllm" / "__init__.py")
    assert "SupportsEagle3" in (patched.site_packages / "vllm" / FILE).read_text()
    assert all(check.ok for check in status.verify_files(patched, {FILE}))
    assert (tree(source), tree(real_python)) == (before, inside)


def plan_patches(engine: Engine) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the patches of a plan on this engine, and why not the others."""
    request = LaunchRequest(recipe="qwen3-coder-next", gpu="gb10", engine=engine.folder)
    plan = plan_launch(request, GpuProbe()).plan
    return plan.patches, plan.skipped_patches


@pytest.mark.index
@pytest.mark.parametrize(
    ("says", "holds", "state"),
    [
        ("0.23.0", "0.24.0", PatchState.UPSTREAM),
        ("0.24.0", "0.23.0", PatchState.NEEDED),
        ("0.23.1.dev7", "0.24.0", PatchState.UPSTREAM),
    ],
)
def test_source_tree_is_judged_by_its_contents(says, holds, state, texts, tmp_path, monkeypatch):  # noqa: PLR0917
    """Not by its version, which stays when somebody checks out another branch: by status and plan."""
    source = checkout(tmp_path / "source", texts[holds], says)
    engine = noted(tmp_path / "engine", source, says)
    assert status.find_patch_status(patch_file.load_patch(PATCH), engine).state is state
    monkeypatch.setattr(inventory, "find_engine_by_name", lambda _name: engine)
    patches, skipped = plan_patches(engine)
    assert (PATCH in patches, PATCH in skipped) == (state is PatchState.NEEDED, state is PatchState.UPSTREAM)


@pytest.mark.index
def test_unfitting_source_tree_is_left_unchanged(texts, tmp_path):
    """With what to do: nobody reinstalls somebody's checkout."""
    text = texts["0.23.0"][FILE].replace("    IsHybrid,\n", "    # a hybrid\n    IsHybrid,\n")
    source = checkout(tmp_path / "source", texts["0.23.0"] | {FILE: text})
    engine = noted(tmp_path / "engine", source, "0.23.0")
    with pytest.raises(PatchError) as caught:
        make(engine, patch_file.load_patch(PATCH))
    assert str(source) in caught.value.hint
    assert f"--set patches.{PATCH}=false" in caught.value.hint
    assert (source / "vllm" / FILE).read_text() == text


def test_link_out_of_source_tree_is_refused(tmp_path):
    """As one out of an environment is."""
    source = checkout(tmp_path / "source", TEXTS)
    (tmp_path / "elsewhere.py").write_text("")
    (source / "vllm" / FILE).unlink()
    (source / "vllm" / FILE).symlink_to(tmp_path / "elsewhere.py")
    engine = noted(tmp_path / "engine", source, "0.23.0")
    found = status.find_patch_status(patch_file.load_patch(PATCH), engine)
    assert "leads out of" in f"{found.why}{found.drift}"
