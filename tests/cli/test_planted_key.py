"""A key of the environment that logs, answers, names and files quote: no command shows it, no file has it."""

import contextlib
import json
import zipfile

import pytest

from dflash_tui.cli import main
from dflash_tui.common import paths
from tests.cli.test_escapes import AS_JSON, COMMANDS, told
from tests.support import hostile_home, planted

RUN, AB = hostile_home.RUN, hostile_home.AB
MORE = (
    ("why", RUN, "--report"),
    ("attach", RUN, "--json"),
    ("replay", RUN, "--json"),
    ("history", "--json"),
    ("report", RUN, "--json"),
    ("report", AB, "--format", "svg"),
    ("recipes", "show", "quoted"),
    ("logs", planted.KEY),
    ("plan", planted.KEY),
)
WRITTEN = (
    ("report", RUN, "-o", "run.md"),
    ("report", RUN, "--json", "-o", "run.json"),
    ("report", RUN, "--format", "svg", "-o", "run.svg"),
    ("report", AB, "-o", "ab.md"),
    ("report", AB, "--json", "-o", "ab.json"),
    ("report", AB, "--format", "svg", "-o", "ab.svg"),
    ("report", "compare", "report.json", AB, "-o", "compared.md"),
    ("export", RUN, "-o", "run.zip"),
    ("export", RUN, "--with-prompts", "-o", "all.zip"),
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home in which everything quotes the key, whole and in disguise; our folder is another."""
    monkeypatch.setenv("VLLM_API_KEY", planted.KEY)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    hostile_home.made(planted.ALL, here)
    return here


@pytest.mark.parametrize(
    "words",
    [
        (planted.KEY,),
        ("--api-key", planted.KEY),
        ("up", "demo-cpu", f"--api-key={planted.KEY}"),
        ("plan", "demo-cpu", "--port", planted.KEY),
        ("ab", "list", planted.KEY),
        ("up", "demo-cpu", "--api-key", "of-another-server\x1b[2J"),
    ],
)
def test_no_word_that_is_none_of_ours_shows_it(words, monkeypatch, capsys):
    """What is wrong with a command is read in the logs of CI, too."""
    monkeypatch.setenv("VLLM_API_KEY", planted.KEY)
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    written = capsys.readouterr().err
    assert (ended.value.code, "[left out]" in written) == (2, words[:2] != ("up", "demo-cpu"))  # else only the option
    assert not planted.is_in(written)
    assert not {"of-another-server", "\x1b"} & {*written.split(), *written}


ADDRESSES = (
    "http://me:s3cr3t-pass@10.0.0.5:8000/v1",
    "me:s3cr3t-pass@host:80",
    "https://me:s3cr/3t-pass@host",
    "me:s3cr/3t-pass@host:80",
    "http://me:s3cr'3t-pass@host:80",
    "http://me:'s3cr\"3t-pass'@host:80",
    "http://127.0.0.1:1/?api-key=s3cr3t-pass",
    "http://127.0.0.1:1/hf_s3crs3crs3crs3crs3crs3cr",
)


@pytest.mark.parametrize(
    "words",
    [
        ("attach",), ("bench",), ("chat",), ("logs",), ("stop",), ("ps",), ("why",), ("replay",), ("export",),
        ("report",), ("report", "compare", "report.json"), ("history",), ("client",), ("plan",), ("recipes", "add"),
        ("recipes", "check"), ("engine", "adopt"), ("patch", "diff"), ("plan", "--target"), ("doctor", "--peer"),
        ("plan", "demo-cpu", "--port"), ("--host",),
    ],
)  # fmt: skip
def test_no_command_shows_the_password_of_an_address(tmp_path, monkeypatch, capsys, words):
    """Also those that take no address, and where a path or a host was asked for."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for address in ADDRESSES:
        with contextlib.suppress(SystemExit):
            assert main.main([*words, address]) != 0, address
    written = "".join(capsys.readouterr())
    assert not {"s3cr", "3t-pass"} & {part for part in ("s3cr", "3t-pass") if part in written}, written


def test_no_command_shows_it(home):
    """In no form and with nothing invisible in its middle."""
    left_out = 0
    for words in (*COMMANDS, *((*words, "--json") for words in AS_JSON), *MORE):
        said = told(*words)
        assert said, words
        assert "Traceback" not in said, words
        assert not planted.is_in(said), words
        if "--json" in words:
            assert all(json.loads(line) for line in said.splitlines() if line.startswith("{")), words
        left_out += "[left out]" in said
    assert left_out > 20, "a world in which nobody says anything proves nothing"


def test_no_file_has_it(home):
    """Reports, pictures and exported runs, which are given away; what is played again says as much."""
    before = set(home.iterdir())
    for words in WRITTEN:
        assert "Traceback" not in told(*words), words
    files = set(home.iterdir()) - before
    assert len(files) == len(WRITTEN)
    for path in sorted(files):
        text = path.read_text(errors="replace") if path.suffix != ".zip" else ""
        assert not planted.is_in(text), path
    for path in sorted(home.glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            text = "\n".join(archive.read(name).decode(errors="replace") for name in archive.namelist())
        assert "[left out]" in text
        assert not planted.is_in(text), path
        assert not planted.is_in(told("replay", str(path), "--json"))


def test_the_token_of_the_hub_and_a_password_are_left_out(home, folders, monkeypatch):
    """The one in the file of `hf auth login`, and a variable that is called DB_PASS."""
    token = folders / "cache" / "huggingface" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("token-of-a-mirror")
    monkeypatch.setenv("DB_PASS", "hunter22")
    log = paths.runs_folder() / RUN / "server.log"
    log.write_bytes(log.read_bytes() + b"ValueError: token-of-a-mirror and hunter22 of max_num_batched_tokens=2048\n")
    for words in (("logs", RUN), ("attach", RUN, "--json"), ("why", RUN), ("why", RUN, "--report")):
        said = told(*words)
        assert ("mirror" in said, "hunter22" in said) == (False, False), words
    assert "ValueError: [left out] and [left out] of max_num_batched_tokens=2048" in told("logs", RUN)


def test_no_half_of_it_begins_what_is_kept_of_a_long_line(home):
    """`logs` keeps the end of a line that is longer than its buffer."""
    log = paths.runs_folder() / RUN / "server.log"
    for cut in range(1, len(planted.KEY)):
        log.write_bytes(b"x" * 9 + planted.KEY.encode() + b"\n" + b"x" + planted.KEY.encode() + b" z" * (1 << 19))
        log.write_bytes(log.read_bytes()[: -cut or None] + b"\n")
        assert planted.KEY[-4:] not in told("logs", RUN), cut
