"""CPU time, disk bytes and the log of real processes."""

import os
import subprocess
import sys
import time

import psutil

from dflash_tui.events import Activity, decode_recorded, encode
from dflash_tui.monitoring import sampler

WORK = """
import os, subprocess, sys, time
subprocess.run([sys.executable, "-c", "while __import__('time').process_time() < 0.5: pass"], check=True)
with open(sys.argv[1], "wb") as file:
    file.write(os.urandom(8 << 20))
    os.fsync(file.fileno())
print("done", flush=True)
time.sleep(60)
"""


def test_work_of_a_process_and_of_its_ended_child_is_seen(tmp_path):
    """A compiler that has ended counts through its parent; the bytes written and the log's size are there, too."""
    log = tmp_path / "server.log"
    log.write_bytes(b"a line\n")
    argv = [sys.executable, "-c", WORK, str(tmp_path / "written")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            members = [psutil.Process(process.pid)]
            assert process.stdout is not None
            assert process.stdout.readline() == b"done\n"
            after = sampler.sample_activity(members, log, 1000.0)
            time.sleep(1.0)
            idle = sampler.sample_activity(members, log, 1001.0)
        finally:
            process.kill()
    assert after.cpu >= 0.5
    assert after.disk >= 8 << 20
    assert (after.at, after.log) == (1000.0, 7)
    assert idle.cpu - after.cpu < 0.5
    gone = sampler.sample_activity(members, tmp_path / "none", 1002.0)
    assert gone == Activity(1002.0, 0.0, 0, 0)


def test_the_processors_and_threads_of_processes_are_seen():
    argv = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            members = [psutil.Process(process.pid)]
            assert process.stdout is not None
            process.stdout.readline()
            use, deadline = sampler.measure_processor_use(members), time.monotonic() + 60
            while (later := sampler.measure_processor_use(members)).seconds <= use.seconds:
                assert time.monotonic() < deadline
            assert (later.processors, later.threads) == (len(os.sched_getaffinity(process.pid)), 1)
        finally:
            process.kill()
    assert sampler.measure_processor_use(members) == (0.0, 0, 0)


def test_a_sample_survives_the_file():
    """It is written and read back as a line of samples.jsonl."""
    sample = Activity(1.5, 12.25, 4096, 77)
    assert decode_recorded(encode(sample)) == sample
