"""What we write is for its owner alone, and what others could have written is not believed."""

import os
import resource
import stat
import sys

import pytest
from msgspec.structs import replace

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import UsageError
from dflash_tui.experiments import store
from dflash_tui.runs import lifecycle, registry, server_process
from tests.support import escapes
from tests.support.experiment_factories import a_design, a_plan


@pytest.fixture(params=[0o000, 0o022, 0o027])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_umask_never_exposes_runs_and_experiments(umask):
    """Folders 0700, files 0600: those of a launch with its log, and those of an experiment."""
    plan = replace(a_plan(), argv=(sys.executable, "-c", "print(1)"))
    run = lifecycle.launch_server(plan, engine="none")
    server_process.read_exit_code(run)
    store.append_event(store.create_experiment(a_design()), run.launched)
    root = paths.runs_folder().parent
    modes = {path.relative_to(root): stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}
    assert {path.name for path in modes} >= {
        "runs",
        run.id,
        "run.json",
        "server.log",
        "experiment.json",
        "events.jsonl",
    }
    for path, mode in modes.items():
        assert mode == (0o700 if (root / path).is_dir() else 0o600), path


def test_a_name_of_a_run_cannot_climb():
    """Names open nothing but what stands in the list of runs."""
    for name in ("../x", "/etc", "..", escapes.all_of_them()[:200]):
        with pytest.raises(UsageError):
            registry.find_run(name)


def test_no_more_than_the_limit_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert private_files.read_file(tmp_path / "file", 100) == b"x" * 100
    with pytest.raises(OSError, match="larger than"):
        private_files.read_file(tmp_path / "file", 99)


@pytest.mark.parametrize("room", [0, 12, 33, 39])
def test_line_after_full_disk_stays_separate(tmp_path, room):
    """However much of a line the disk had room for, no line after it is lost; the torn one is."""
    path = tmp_path / "samples.jsonl"
    lines = [b'{"at": %d, "text": "some text"}' % number for number in range(4)]
    private_files.append_line(path, lines[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        if room < len(lines[1]) + 1:
            with pytest.raises(OSError, match="File too large"):
                private_files.append_line(path, lines[1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    private_files.append_line(path, lines[2])
    private_files.append_line(path, lines[3])
    torn = lines[1][:room] if 0 < room <= len(lines[1]) else None
    assert path.read_bytes().splitlines() == [line for line in (lines[0], torn, *lines[2:]) if line is not None]
