"""What was appended to a file is read, whatever became of the file since."""

import os

import pytest

from dflash_tui.monitoring.observer import TailReader


@pytest.fixture
def tail(tmp_path):
    """A log that was read to its end, and its reader, which looks for the log under the newest name."""
    log = tmp_path / "server.log"
    log.write_bytes(b"first\n")
    reader = TailReader(lambda: max(tmp_path.iterdir(), key=lambda path: path.name))
    assert reader.read() == b"first\n"
    return log, reader


def test_nothing_new_is_nothing(tail):
    assert [tail[1].read() for _ in range(3)] == [b"", b"", b""]


def test_a_renamed_log_is_read_on(tail):
    log, reader = tail
    renamed = log.rename(log.with_name("server.log.1"))
    assert reader.read() == b""
    with renamed.open("ab") as file:
        file.write(b"second\n")
    assert reader.read() == b"second\n"


def test_another_file_of_the_same_size_is_read(tail):
    log, reader = tail
    other = log.with_name("other")
    other.write_bytes(b"other\n")
    other.replace(log)
    assert reader.read() == b"\nother\n"


def test_a_log_that_was_emptied_is_read_from_its_start(tail):
    log, reader = tail
    os.truncate(log, 0)
    assert reader.read() == b"\n"
    with log.open("ab") as file:
        file.write(b"later\n")
    assert reader.read() == b"later\n"


def test_an_empty_log_is_looked_for_again(tmp_path):
    """It may have an older one beside it, which tells of the server."""
    empty, older = tmp_path / "server.log", tmp_path / "server.log.1"
    empty.touch()
    reader = TailReader(lambda: older if older.exists() else empty)
    assert reader.read() == b""
    older.write_bytes(b"first\n")
    assert reader.read() == b"first\n"


def test_a_link_in_its_place_is_not_followed(tail):
    log, reader = tail
    log.rename(elsewhere := log.with_name("elsewhere"))
    log.symlink_to(elsewhere)
    assert reader.read() == b""
