"""A day of traffic through the panel in a pseudo-terminal: `python -m tools.benchmarks.soak [--hours 24] [--speed 60]`.

The recording begins as the sample does; then a server works second by second, with requests, GPU and log. Each hour
of it one line: memory of the panel's own (USS), open files, threads. Nothing is asserted: the last line says what grew
after the first hour.
"""

import argparse
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from dflash_tui.events import encode
from dflash_tui.monitoring import recording
from tools.benchmarks.recorded_load import HOUR, load
from tools.benchmarks.terminal import Terminal

MIB = 1 << 20
_LINE = (
    "(APIServer pid=662) INFO {at} [loggers.py:310] Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, "
    "Avg generation throughput: {out:.1f} tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.2%, "
    "Prefix cache hit rate: 33.0%\n"
)


def day(folder: Path, hours: float) -> float:
    """Write the recording into `folder` and return how many seconds it lasts."""
    sample = recording.find_recording("sample")
    (folder / recording.RUN_PART).write_bytes((sample.folder / recording.RUN_PART).read_bytes())
    start = sample.last_event_time() + 1
    with (folder / recording.SAMPLES_PART).open("wb") as samples, (folder / recording.LOG_PART).open("w") as log:
        samples.write((sample.folder / recording.SAMPLES_PART).read_bytes())
        log.write((sample.folder / recording.LOG_PART).read_text())
        for second in range(int(hours * HOUR)):
            samples.writelines(encode(event) + b"\n" for event in load(start, second))
            if second % 10 == 0:
                at = datetime.fromtimestamp(start + second, UTC) + timedelta(seconds=sample.utc_offset)
                log.write(_LINE.format(at=f"{at:%m-%d %H:%M:%S}", prompt=90.0 + second % 7, out=151.0 + second % 40))
    return start + hours * HOUR - sample.started_at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--speed", type=float, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        lasts = day(Path(name), args.hours)
        began = time.monotonic()
        panel = Terminal("replay", name, "--speed", f"{args.speed:g}")
        panel.until("REPLAY")
        process, seen = psutil.Process(panel.pid), []
        while (played := (time.monotonic() - began) * args.speed) < lasts and panel.process.poll() is None:
            panel.rest(min(HOUR, lasts - played) / args.speed)
            with process.oneshot():
                seen.append((process.memory_full_info().uss, process.num_fds(), process.num_threads()))
            hours, (own, files, threads) = (time.monotonic() - began) * args.speed / HOUR, seen[-1]
            print(f"{hours:5.1f} h  {own / MIB:6.1f} MiB  {files} files  {threads} threads", flush=True)
        alive = panel.process.poll() is None
        panel.close()
    if not alive or len(seen) < 2:
        raise SystemExit("the panel ended by itself" if not alive else "too short to tell")
    first, last = seen[0], seen[-1]
    most = max(own for own, _, _ in seen[1:])
    print(
        f"after the first hour: {(last[0] - first[0]) / MIB:+.1f} MiB (at most {(most - first[0]) / MIB:+.1f}), "
        f"{last[1] - first[1]:+d} files, {last[2] - first[2]:+d} threads, {panel.bytes / MIB:.0f} MiB to the terminal"
    )


if __name__ == "__main__":
    main()
