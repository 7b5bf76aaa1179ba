"""Folders of their own for every test, and the demo engine, which is built once and kept outside the checkout."""

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import platformdirs
import pytest
from hypothesis import HealthCheck, settings
from textual.pilot import Pilot

from dflash_tui.cli import console
from dflash_tui.engines import environments, installation
from dflash_tui.engines import model_hub as hub_client
from dflash_tui.experiments import controller, store
from dflash_tui.machine import gpus
from dflash_tui.monitoring import foreign_server
from dflash_tui.planning.plan_builder import engine_folder_for
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.run import Run
from tests.support import fake_nvml, fake_runs, toy_pair
from tests.support.pty_terminal import Terminal

# Textual gives a screen 30 s to settle, we give a hub 10 s to answer: a busy machine needs more. What hangs is ended
# by pytest's own limit.
Pilot._wait_for_screen.__defaults__ = (300.0,)
hub_client.TIMEOUT = 300.0

# Nor is an example of hypothesis too slow.
_UNJUDGED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("any machine", settings(), deadline=None, suppress_health_check=_UNJUDGED)
settings.load_profile("any machine")

pytest_plugins = ["tests.support.fixtures"]

# Two threads of an engine wait for each other at every layer, in vain while a core is taken: 35 tok/s instead of 600.
ONE_THREAD = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}

# Tests send Ctrl-C and SIGHUP, which a shell's background or nohup would have all they start ignore. What is
# handled here has its default in all that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
os.environ["PYTHONFAULTHANDLER"] = "1"  # a program that crashes tells where
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of commands would each compile all of us again


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `--update-plans` write the texts in data/plans anew."""
    parser.addoption("--update-plans", action="store_true", help="write tests/data/plans anew")


# What is begun first, each by one worker: three chains of tests with the real engine, about as long as each other, then
# what is slow to make.
_FIRST = (
    "engine",
    "engine: hosts",
    "engine: arms",
    "simulation",
    "resolve",
    "releases",
    "sources",
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files without a long test out of a search for those alone: each worker would import all of them."""
    searched = config.option.markexpr.startswith("long") and collection_path.match("test_*.py")
    return True if searched and not _may_be_long(collection_path) else None


@cache
def _may_be_long(path: Path) -> bool:
    return re.search(r"\bmark\.long\b|\bleave_to_long\(", path.read_text(encoding="utf-8")) is not None


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a case by the beginning of a long value: some are megabytes, and each worker sends all names."""
    return f"{val[:40]!r}..." if isinstance(val, str | bytes) and len(val) > 300 else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let tests with the real engine take turns: they share port, files and cores, and may wait long."""
    if group := _group(item):
        item.add_marker(pytest.mark.xdist_group(group))
    if group.startswith("engine") and not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(1800))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    for item in items:
        assert _may_be_long(item.path) or not item.get_closest_marker("long"), f"{item.path} is not searched for {item}"
    items.sort(key=_place)


def pytest_collection_finish() -> None:
    """Leave the collected tests out of each search for garbage, and search less often: it took much of their time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _place(item: pytest.Item) -> int:
    marker = item.get_closest_marker("xdist_group")
    group = marker.args[0] if marker else ""
    return _FIRST.index(group) if group in _FIRST else len(_FIRST)


def _group(item: pytest.Item) -> str:
    """Return the name of those that are run by one worker: with the real engine, or with what is slow to make."""
    fixtures = getattr(item, "fixturenames", ())
    if "demo_engine" in fixtures and {"vllm", "server"} & set(item.path.parts):
        chain = item.get_closest_marker("chain")
        return f"engine: {chain.args[0]}" if chain else "engine"
    return next((name for name in ("releases", "sources") if name in fixtures), "")


@pytest.fixture(autouse=True)
def driver(monkeypatch) -> None:
    """Let NVML be asked in any case: tests put GPUs behind it on machines without a driver's library."""
    monkeypatch.setattr(gpus, "has_driver", lambda: True)


@pytest.fixture(autouse=True)
def text_output() -> None:
    """Print text where a test calls what a command calls; `main` chooses for itself."""
    console.use_json(False)


@pytest.fixture(autouse=True)
def listeners(monkeypatch) -> None:
    """Find no server of another test, nor of this machine's user."""
    monkeypatch.setattr(foreign_server, "list_listeners", list)


@pytest.fixture(autouse=True)
def folders(tmp_path_factory, monkeypatch) -> Path:
    """Point all XDG folders into a temporary one, and drop whatever the caller has set for us."""
    root: Path = tmp_path_factory.mktemp("home")
    for kind in ("DATA", "STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(root / kind.lower()))
    for name in [name for name in os.environ if name.startswith("DFLASH_TUI_")]:
        monkeypatch.delenv(name)
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_ANIMATIONS"):
        monkeypatch.delenv(name, raising=False)
    return root


@pytest.fixture
def launch() -> Iterator[Callable[..., Run]]:
    """Launch the stand-in by the product's own launcher, and end whatever is left."""
    runs: list[Run] = []

    def start(*words: str, port: int | None = None) -> Run:
        runs.append(lifecycle.launch_server(fake_runs.made(port or fake_runs.free_port(18_200), *words), engine="fake"))
        return runs[-1]

    yield start

    async def end() -> None:
        await asyncio.gather(*(lifecycle.stop_server(run, grace=0.1) for run in runs))

    asyncio.run(end())


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Return a function that opens the panel in a terminal; whatever is left of it is ended."""
    opened: list[Terminal] = []

    def start(*words: str, **more: tuple[str, ...]) -> Terminal:
        opened.append(Terminal(*words, **more))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.fixture(scope="session")
def stand_in_nvml(tmp_path_factory) -> Path:
    """Return a folder with a library that plays NVIDIA's driver; `tests.support.fake_nvml` runs programs with it."""
    return fake_nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def engine_data() -> Path:
    """Return the XDG data folder with the demo engine; the product builds it when it is absent.

    DFLASH_TUI_TEST_DATA names another place. The engine's folder carries a digest of its recipe, so a changed
    recipe gets another engine.
    """
    given = os.environ.get("DFLASH_TUI_TEST_DATA")
    return Path(given) if given else platformdirs.user_cache_path("dflash-tui-tests")


@pytest.fixture(scope="session")
def demo_engine(engine_data) -> environments.Engine:
    """Return the kept demo engine, built when it is absent."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_DATA_HOME", str(engine_data))
        spec = resolution.resolve_recipe(recipe_loader.find_recipe("demo-cpu")).engine
        return asyncio.run(installation.install_engine(spec, engine_folder_for(spec), lambda _event: None))


@pytest.fixture
def with_engine(folders, demo_engine, engine_data, monkeypatch) -> Iterator[Path]:
    """Use the kept engine and its caches; end whatever server the test leaves."""
    variables = {"XDG_DATA_HOME": str(engine_data), "XDG_CACHE_HOME": str(engine_data / "cache"), **ONE_THREAD}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    toy_pair.write_recipe()
    toy_pair.build_models()
    yield folders
    _end_servers()


@pytest.fixture
def nothing_left(folders) -> Iterator[None]:
    """End whatever driver and server a test of experiments leaves."""
    yield
    for design in store.list_experiments():
        controller.stop_driver(design)
    _end_servers()


def _end_servers() -> None:
    for run in registry.list_runs():
        if server_process.list_processes(run):
            subprocess.run([sys.executable, "-m", "dflash_tui", "stop", run.id], check=True)
