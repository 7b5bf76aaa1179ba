"""Folders of their own for every test, and the demo engine, which is built once and kept outside the checkout."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs
import pytest

from dflash_tui.common import own_secrets
from dflash_tui.engines import environments
from dflash_tui.experiments import controller, store
from dflash_tui.planning import plan, recipe_loader, resolution
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.run import Run
from tests.support import fake_nvml, fake_runs
from tests.support.pty_terminal import Terminal

pytest_plugins = ["tests.support.fixtures"]

# Tests send Ctrl-C, which whatever a shell starts in the background would inherit as ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["PYTHONFAULTHANDLER"] = "1"  # a program that crashes tells where
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of commands would each compile all of us again


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `--update-plans` write the texts in data/plans anew."""
    parser.addoption("--update-plans", action="store_true", help="write tests/data/plans anew")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let tests with the real engine take turns: they share its port, its files and the cores."""
    if group := _group(item):
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    items.sort(key=lambda item: ["engine", "releases", "sources", ""].index(_group(item)))


def _group(item: pytest.Item) -> str:
    """Return the name of those that are run by one worker: with the real engine, or with what is slow to make."""
    fixtures = getattr(item, "fixturenames", ())
    if "demo_engine" in fixtures and {"vllm", "server"} & set(item.path.parts):
        return "engine"
    return next((name for name in ("releases", "sources") if name in fixtures), "")


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
    own_secrets.read_own_secrets()
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
        return asyncio.run(environments.install_engine(spec, plan.engine_folder_for(spec), lambda _event: None))


@pytest.fixture
def with_engine(folders, demo_engine, engine_data, monkeypatch) -> Iterator[Path]:
    """Use the kept engine and its caches; end whatever server the test leaves."""
    monkeypatch.setenv("XDG_DATA_HOME", str(engine_data))
    monkeypatch.setenv("XDG_CACHE_HOME", str(engine_data / "cache"))
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
