"""`runs prune`, `disk` and `completion`."""

import json
import os
import subprocess
import time

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui.cli.main import main
from dflash_tui.common import paths
from dflash_tui.common.private_files import DiskCount
from dflash_tui.experiments import store
from dflash_tui.experiments.design import BootBegan
from dflash_tui.runs import registry
from dflash_tui.runs.run import Run
from tests.server.faults.test_file_faults import ended
from tests.support.experiment_factories import a_design

DAY = 86_400


def aged(name: str, days: float) -> Run:
    """Leave a run that was written to last so many days ago."""
    run = ended(name=name)
    for path in run.folder.iterdir():
        os.utime(path, (time.time() - days * DAY,) * 2)
    record = replace(run, started_at=time.time() - days * DAY)
    (run.folder / "run.json").write_bytes(msgspec.json.encode(record))
    os.utime(run.folder / "run.json", (time.time() - days * DAY,) * 2)
    return record


@pytest.mark.usefixtures("folders")
def test_prune_removes_runs_ended_long_ago(launch, capsys):
    """Without --yes nothing; a server that runs, a young run and one of an A/B stay."""
    living, young, old, older = launch(), aged("young", 2), aged("old", 31), aged("older", 40)
    tried = aged("tried", 50)
    folder = store.create_experiment(a_design())
    store.append_event(folder, BootBegan(time.time(), 0, 0, tried.id))
    assert main(["runs", "prune", "--dry-run", "--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["run"], each["removed"]) for each in listed] == [(older.id, False), (old.id, False)]
    assert all(each["bytes"] > 0 for each in listed)
    assert len(registry.list_runs()) == 5
    assert main(["runs", "prune", "--yes"]) == 0
    assert {run.id for run in registry.list_runs()} == {living.id, young.id, tried.id}
    assert not old.folder.exists()
    assert main(["runs", "prune", "--older-than", "0s", "--yes"]) == 0
    assert {run.id for run in registry.list_runs()} == {living.id, tried.id}
    with pytest.raises(Exception, match="running"):
        registry.remove_run(living)


def test_hard_linked_file_counts_once(tmp_path):
    """As the files that an engine shares with uv's cache; links are not followed."""
    for folder in ("engine", "cache"):
        (tmp_path / folder).mkdir()
    (tmp_path / "engine" / "file").write_bytes(b"x" * 40_960)
    os.link(tmp_path / "engine" / "file", tmp_path / "cache" / "file")
    (tmp_path / "cache" / "link").symlink_to(tmp_path / "engine")
    count = DiskCount()
    assert count.measure_folder(tmp_path / "engine") >= 40_960
    assert count.measure_folder(tmp_path / "cache") < 40_960
    assert count.measure_folder(tmp_path / "nowhere") == 0


def test_disk_names_a_command_for_each_thing(folders, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_CACHE", str(folders / "hub"))
    monkeypatch.setenv("UV_CACHE_DIR", str(folders / "uv"))
    left = paths.engines_folder() / "vllm-0.33.0-1234"
    program = paths.data_folder() / "program-k3v1"
    paths.data_folder().mkdir(parents=True, exist_ok=True)
    (paths.data_folder() / "program").symlink_to("program-k3v1")
    for folder in (folders / "hub" / "models--a--b", left, paths.runs_folder() / "r", paths.cache_folder(), program):
        folder.mkdir(parents=True)
        (folder / "pyvenv.cfg").write_bytes(b"x" * 2_000_000)
    assert main(["disk", "--json"]) == 0
    items = {each["kind"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    assert (items["model"]["name"], items["model"]["remove"]) == ("a/b", f"rm -r {folders}/hub/models--a--b")
    assert items["engine"]["remove"] == "dflash-tui engine remove vllm-0.33.0-1234"
    assert items["program"]["remove"] == f"rm -r {paths.data_folder()}/program {program}"
    assert items["runs"]["remove"] == "dflash-tui runs prune"
    assert [items[kind]["bytes"] >= 2_000_000 for kind in ("engine", "model", "cache", "runs", "packages")] == [
        True, True, True, True, False,
    ]  # fmt: skip
    assert main(["disk"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 7


def test_small_entries_share_row_counted_in_total(folders, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_CACHE", str(folders / "hub"))
    monkeypatch.setenv("UV_CACHE_DIR", str(folders / "uv"))
    small = [folders / "hub" / "models--a--b", folders / "hub" / "models--a--c", paths.runs_folder() / "r"]
    for folder in (paths.cache_folder(), *small):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * (900_000 if folder in small else 40_000_000))
    assert main(["disk"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["cache", "others", "total"]
    assert rows[1][:6] == ["others", "below", "1", "MB:", "model,", "runs"]
    sizes = [int(words[words.index("MB") - 1]) for words in rows]
    assert (sizes[1] >= 3, sizes[2]) == (True, sizes[0] + sizes[1])


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_completion_knows_every_command(shell, capsys):
    """Neither shell is installed everywhere: what is in the script is looked at."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert [word in script for word in ("orphans", "lossless", "gpu-memory", "demo-cpu", "older-than")] == [
        True, True, False, True, True,
    ]  # fmt: skip


def test_bash_completes_commands_options_and_recipes(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    code = 'COMP_WORDS=(dflash-tui "$@"); COMP_CWORD=$#; _shtab_dflash_tui; echo "${COMPREPLY[*]}"'
    asked = f"source ./script; ask() {{ {code}; }}; ask rep; ask plan demo; ask runs prune --old"
    done = subprocess.run(["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["report replay", "demo-cpu", "--older-than"]


def test_shell_code_recipe_name_is_not_completed(folders, capsys):
    paths.user_recipes_folder().mkdir(parents=True)
    for name in ("plain", "$(touch pwned)", "a;b"):
        (paths.user_recipes_folder() / f"{name}.yaml").touch()
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert ("plain" in script, "pwned" in script, "a;b" in script) == (True, False, False)
