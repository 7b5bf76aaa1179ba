"""What an engine is installed from: wheels alone unless the recipe says so, and the same files the second time."""

import asyncio
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import EngineError
from dflash_tui.engines import installation, inventory, uv_process
from dflash_tui.engines.environments import Engine
from dflash_tui.events import Preparing
from dflash_tui.planning.plan_builder import engine_folder_for
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.recipes.recipe import EngineSpec
from tests.support import tiny_wheels

SECRET = "hf_Pl4ntedPl4ntedPl4ntedPl4nted"


@pytest.fixture
def wheels(tmp_path, monkeypatch) -> Path:
    """A folder of wheels, a cache that is empty, and no index."""
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("HF_TOKEN", SECRET)
    tiny_wheels.write_wheel(tmp_path / "wheels", "x = 1")
    return Path(tmp_path, "wheels")


@pytest.fixture
def spec() -> EngineSpec:
    return replace(
        resolution.resolve_recipe(recipe_loader.find_recipe("demo-cpu")).engine,
        packages=(f"{tiny_wheels.NAME}==1.0",), overrides=(), torch_backend="",
        exclude_newer="", stands_in=tiny_wheels.NAME, vllm="1.0.0", download_mb=1, disk_mb=10,
    )  # fmt: skip


def install(spec: EngineSpec) -> Engine:
    def ignore(_event: Preparing) -> None:
        """Take no notice."""

    return asyncio.run(installation.install_engine(spec, engine_folder_for(spec), ignore))


def module(engine: Engine) -> str:
    return (engine.site_packages / "tiny_of_ours.py").read_text()


def test_first_install_locks_versions_and_hashes(wheels, spec):
    """They outlive the engine, and nobody else may write them."""
    engine = install(spec)
    lock = uv_process.lock_file(Path(engine.folder))
    [wheel] = wheels.iterdir()
    assert f"{tiny_wheels.NAME}==1.0" in lock.read_text()
    assert f"--hash={tiny_wheels.hash_of(wheel)}" in lock.read_text()
    assert (lock.stat().st_mode & 0o777, lock.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    inventory.remove_engine(engine)
    assert lock.exists()
    assert inventory.list_leftovers() == []
    assert inventory.list_engines() == []
    assert module(install(spec)) == "x = 1"


def test_reinstall_refuses_changed_file_of_locked_version(wheels, spec, tmp_path):
    """Named with what was expected, what came, and what to do; nothing is installed, until the user says so."""
    engine = install(spec)
    lock = uv_process.lock_file(Path(engine.folder))
    [wheel] = wheels.iterdir()
    before = tiny_wheels.hash_of(wheel)
    inventory.remove_engine(engine)
    shutil.rmtree(tmp_path / "cache")
    tiny_wheels.write_wheel(wheels, "import os; print('evil')")
    with pytest.raises(EngineError) as caught:
        install(spec)
    assert all(
        word in caught.value.evidence for word in (f"{tiny_wheels.NAME}==1.0", before, tiny_wheels.hash_of(wheel))
    )
    assert f"rm {lock}" in caught.value.hint
    assert not Path(engine.folder).exists()
    lock.unlink()
    assert "evil" in module(install(spec))


def test_reinstall_keeps_locked_versions(wheels, spec):
    """A lock is a lock: the versions of the first time, and when one is gone that is said."""
    spec = replace(spec, packages=(tiny_wheels.NAME,))
    inventory.remove_engine(install(spec))
    newer = tiny_wheels.write_wheel(wheels, "x = 2", "2.0")
    engine = install(spec)
    assert (module(engine), engine.packages[0]) == ("x = 1", f"{tiny_wheels.NAME}==1.0")
    inventory.remove_engine(engine)
    for wheel in wheels.iterdir():
        if wheel != newer:
            wheel.unlink()
    with pytest.raises(EngineError) as caught:
        install(spec)
    assert f"{tiny_wheels.NAME}==1.0" in caught.value.evidence
    assert str(uv_process.lock_file(Path(engine.folder))) in caught.value.hint


def test_source_build_needs_permission_of_recipe(wheels, spec, tmp_path):
    """A build runs code of the package: refused before it is, named, and without a secret where it is allowed."""
    ran = tmp_path / "ran"
    line = f"import os\nopen({str(ran)!r}, 'a').write(repr(dict(os.environ)))"
    source = tiny_wheels.write_source(tmp_path / "source", line)
    spec = replace(spec, packages=(f"{tiny_wheels.NAME} @ {source.as_uri()}",))
    with pytest.raises(EngineError) as caught:
        install(spec)
    assert tiny_wheels.NAME in caught.value.evidence
    assert "source_builds" in caught.value.hint
    assert not ran.exists()
    assert not engine_folder_for(spec).exists()
    assert module(install(replace(spec, source_builds=True))) == "x = 1"
    assert "PATH" in ran.read_text()
    assert SECRET not in ran.read_text()
