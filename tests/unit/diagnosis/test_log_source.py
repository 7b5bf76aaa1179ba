"""What containers, services and clusters put around a log is taken away, and nothing else."""

import json

from dflash_tui.diagnosis.log_source import Unwrapper
from tests.support import recordings

LOG = (
    b"(APIServer pid=1) INFO 11-22 10:00:00 [api_server.py:1] vLLM server version 0.33.0\n"
    b"(EngineCore pid=2)     raise ValueError(\n"
    b"    indented\n"
    b"ValueError: a | b: c\n"
)
WRAPPINGS = {
    "docker compose": "vllm-1  | {}",
    "docker compose, one service": "vllm | {}",
    "docker logs -t": "2026-11-22T10:00:00.123456789Z {}",
    "kubectl --timestamps": "2026-11-22T10:00:00.123456+01:00 {}",
    "containerd": "2026-11-22T10:00:00.123456789Z stderr F {}",
    "kubectl --prefix": "[pod/vllm-7d9f/vllm] {}",
    "journalctl": "Nov 22 10:00:00 spark-1 vllm[123]: {}",
    "journalctl -o short-iso": "2026-11-22T10:00:00+0100 spark-1 docker[9]: {}",
    "journalctl of compose": "Nov 22 10:00:00 spark-1 docker[9]: vllm-1  | {}",
    "compose with stamps": "vllm-1  | 2026-11-22T10:00:00.123456789Z {}",
    "srun --label": "0: {}",
    "ts -s": "00:00:12 {}",
    "seconds": "    12.42 {}",
    "another logger's stamp": "[2026-11-22 10:00:00,123] {}",
    "colours": "\x1b[36mvllm-1  |\x1b[0m {}",
}


def test_unwrapping_restores_server_lines_exactly():
    """Indentation and the rest of each line stay."""
    for name, wrapping in WRAPPINGS.items():
        wrapped = "".join(f"{wrapping.format(line)}\n" for line in LOG.decode().splitlines())
        assert Unwrapper().unwrap(wrapped.encode()) == LOG, name


def test_docker_s_own_file_is_read():
    """A line of JSON for each line of the log; one that is none stays."""
    entries = [
        json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "x"}, separators=(",", ":"))
        for line in LOG.decode().splitlines()
    ]
    assert Unwrapper().unwrap("".join(f"{entry}\n" for entry in entries).encode()) == LOG
    broken = "\n".join([*entries * 3, '{"log": 7', '{"log":null}', "[" * 5000, ""]).encode()
    assert Unwrapper().unwrap(broken).startswith(LOG[:-1])


def test_first_lines_decide_wrapping_of_whole_log():
    """A line of the log that looks wrapped is left alone, and later pieces are unwrapped as the first."""
    unwrapper = Unwrapper()
    assert unwrapper.unwrap(LOG + b"a-table | with columns\n").endswith(b"a-table | with columns\n")
    assert unwrapper.unwrap(b"vllm-1  | x\n") == b"vllm-1  | x\n"
    wrapped = Unwrapper()
    wrapped.unwrap(b"vllm-1  | x\n" * 30)
    assert wrapped.unwrap(b"vllm-1  | y\nnot wrapped\n") == b"y\nnot wrapped\n"


def test_unwrapped_log_stays_unchanged():
    """Nothing of a recorded server's own lines is taken for wrapping."""
    for name in recordings.names():
        assert Unwrapper().unwrap(recordings.raw(name)) == recordings.raw(name), name
