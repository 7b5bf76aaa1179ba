"""`logs -n` and `stop --all`."""

import pytest

from dflash_tui.cli.main import main
from dflash_tui.runs import server_process
from tests.server.faults.test_file_faults import ended


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(("end", "count"), [("\n", 2), ("", 9)])
def test_logs_prints_the_last_lines(capsys, end, count):
    """Whether or not the last line is whole."""
    run = ended(f"one\n\nthree{end}".encode())
    assert main(["logs", run.id, "-n", str(count)]) == 0
    assert capsys.readouterr().out.splitlines() == ["one", "", "three"][-count:]


def test_stop_all_ends_every_server(launch, capsys):
    runs = [launch(), launch()]
    assert main(["stop"]) == 2
    assert [server_process.is_alive(run) for run in runs] == [True, True]
    assert main(["stop", "--all", runs[0].id]) == 2
    assert main(["stop", "--all"]) == 0
    assert [server_process.list_processes(run) for run in runs] == [[], []]
    assert main(["stop", "--all"]) == 0  # none is left, which is what was asked for
