"""A library that plays NVIDIA's driver, so that what we ask of it goes through the real pynvml."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import uv

SOURCE = Path(__file__).with_name("nvml.c")


def build(folder: Path) -> Path:
    """Compile the library into `folder` and return it; without a C compiler uv fetches one."""
    fetched = [uv.find_uv_bin(), "tool", "run", "--from", "ziglang", "python", "-m", "ziglang", "cc"]
    compiler = ["cc"] if shutil.which("cc") else fetched
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([*compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)], check=True)
    return folder


def environment(folder: Path, machine: str, **more: str) -> dict[str, str]:
    """Return the environment of a program on a machine of the table in nvml.c; the loader reads it at the start."""
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "STAND_IN_NVML": machine, **more}


def dflash(folder: Path, machine: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run our command line on that machine."""
    return run(environment(folder, machine, **more), "-m", "dflash_tui", *words)


def python(folder: Path, machine: str, code: str, **more: str) -> Any:
    """Run `code` on that machine and return what it wrote as JSON."""
    done = run(environment(folder, machine, **more), "-c", code)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python; what hangs for a minute is an error."""
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=240)
