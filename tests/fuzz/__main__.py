"""Fuzz one target by coverage: `python -m tests.fuzz TARGET [--seconds N | --runs N]`, with a Python that has atheris.

A finding ends the run; its input is written to tests/data/fuzz/TARGET, where a test replays it from then on. What else
was found interesting stays in the folder of `--work`, from which a longer run goes on. With `--runs` the inputs are the
same each time.
"""

import argparse
import hashlib
import importlib
import os
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Run libFuzzer over the target; it ends this process."""
    atheris = importlib.import_module("atheris")  # no dependency: only this needs it

    with atheris.instrument_imports(include=["dflash_tui", "prometheus_client", "yaml", "zipfile"]):
        from dflash_tui.tui.widgets import chart  # noqa: F401 - imported late by its target, when nothing is instrumented
        from tests.fuzz import targets
        from tests.fuzz.promises import scratch_folder
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=targets.TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int, help="so many inputs from a fixed seed, instead of so many seconds")
    parser.add_argument("--work", type=Path, help="a folder for all inputs (default: a temporary one)")
    args = parser.parse_args()
    for kind in ("DATA", "STATE", "CACHE", "CONFIG"):  # a target reads and writes no folder of the user's
        os.environ[f"XDG_{kind}_HOME"] = str(scratch_folder() / kind.lower())
    kept = targets.CORPUS / args.target
    kept.mkdir(parents=True, exist_ok=True)
    work = args.work or Path(tempfile.mkdtemp(prefix=f"dflash-fuzz-{args.target}-"))
    work.mkdir(parents=True, exist_ok=True)
    for seed in targets.seeds(args.target):
        (work / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    longest = max(path.stat().st_size for path in work.iterdir())
    options = [f"-runs={args.runs}", "-seed=1"] if args.runs else [f"-max_total_time={args.seconds}"]
    options += [f"-max_len={longest}", "-timeout=20", "-rss_limit_mb=4096"]
    options += [f"-artifact_prefix={kept}/", "-print_final_stats=1", "-verbosity=1"]
    targets.TARGETS[args.target](b"")  # what is made once is made before memory is counted
    atheris.Setup([sys.argv[0], *options, str(work), str(kept)], targets.TARGETS[args.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
