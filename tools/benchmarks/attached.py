"""What watching costs the server: `python -m tools.benchmarks.attached [PAIRS]`.

Needs the demo engine. The same requests are sent to one real server with the panel attached in a terminal and with
nobody watching, by turns (A B B A …); printed is the ratio of the speeds with its 95 % interval over the pairs.
"""

import math
import subprocess
import sys
import time
from statistics import fmean, stdev

import httpx

from dflash_tui.experiments.analysis import stats
from dflash_tui.runs import lifecycle, registry
from dflash_tui.runs.run import Run
from tools.benchmarks.terminal import COMMAND, Terminal

REQUESTS, TOKENS = 16, 120


def wait(run: Run) -> None:
    """Wait for the server, and let it answer once with nobody counting."""
    deadline = time.monotonic() + 400
    while True:
        try:
            if httpx.get(f"{run.url}/health").status_code == 200:
                break
        except httpx.TransportError:
            pass
        if time.monotonic() > deadline:
            raise SystemExit("the server did not come up")
        time.sleep(1)
    speed(run)


def speed(run: Run) -> float:
    """Send the requests one after the other and return tokens per second."""
    began, tokens = time.perf_counter(), 0
    with httpx.Client(base_url=run.url, timeout=300) as client:
        for number in range(REQUESTS):
            body = {"model": run.plan.served_name, "prompt": f"Once upon a time {number}", "max_tokens": TOKENS}
            answer = client.post("/v1/completions", json=body | {"ignore_eos": True, "temperature": 0})
            tokens += answer.raise_for_status().json()["usage"]["completion_tokens"]
    return tokens / (time.perf_counter() - began)


def watched(run: Run) -> float:
    """Return the speed with the panel on its live screen."""
    panel = Terminal("attach", run.id)
    panel.until("tok/s")
    try:
        panel.rest(4)
        sending = subprocess.Popen(
            [sys.executable, "-m", "tools.benchmarks.attached", "--send", run.id], stdout=subprocess.PIPE, text=True
        )
        while sending.poll() is None:
            panel.rest(0.2)
        assert sending.stdout is not None
        return float(sending.stdout.read())
    finally:
        panel.close()


def alone(run: Run) -> float:
    """Return the speed with nobody watching, by the same process of its own."""
    time.sleep(4)
    words = [sys.executable, "-m", "tools.benchmarks.attached", "--send", run.id]
    return float(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> None:
    if sys.argv[1:2] == ["--send"]:
        print(speed(registry.find_run(sys.argv[2])))
        return
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    subprocess.run(
        [*COMMAND, "up", "demo-cpu", "--port", str(lifecycle.find_free_port(18_700)), "--detach"], check=True
    )
    run = registry.list_runs()[-1]
    try:
        wait(run)
        logs = []
        for pair in range(pairs):
            order = (watched, alone) if pair % 2 == 0 else (alone, watched)
            found = {how: how(run) for how in order}
            logs.append(math.log(found[watched] / found[alone]))
            print(f"{found[watched]:7.1f} tok/s with the panel, {found[alone]:7.1f} without", flush=True)
    finally:
        subprocess.run([*COMMAND, "stop", run.id], check=True)
    half = stats.student_t_quantile(0.975, pairs - 1) * stdev(logs) / math.sqrt(pairs)
    middle = fmean(logs)
    low, high = math.exp(middle - half), math.exp(middle + half)
    print(f"with the panel: {math.exp(middle):.3f} times the speed without (95 %: {low:.3f} to {high:.3f}, n={pairs})")


if __name__ == "__main__":
    main()
