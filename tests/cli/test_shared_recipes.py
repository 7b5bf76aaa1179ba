"""`recipes add`, `import` and `update`: what others wrote is checked and said, bounded, and never run unseen."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import httpx
import pytest

from dflash_tui.cli import main
from dflash_tui.common import paths, yaml_loader
from dflash_tui.launch import recipe_files
from dflash_tui.planning.derivation import catalogue
from dflash_tui.planning.recipes import recipe_loader
from tests.support.json_lines import check_lines
from tests.unit.planning.recipes.test_recipe import FULL

Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def web(monkeypatch) -> Callable[[Answer], list[httpx.Request]]:
    """Answer requests in the place of other machines, and return them."""

    def serve(answer: Answer) -> list[httpx.Request]:
        seen: list[httpx.Request] = []

        def keep(request: httpx.Request) -> httpx.Response:
            seen.append(request)
            return answer(request)

        monkeypatch.setattr(recipe_files, "_TRANSPORT", httpx.MockTransport(keep))
        return seen

    return serve


def sent(data: str | bytes) -> httpx.Response:
    """Return an answer whose body comes over a connection."""
    return httpx.Response(200, content=iter([data.encode() if isinstance(data, str) else data]))


def own_recipes() -> set[str]:
    return {path.name for path in paths.user_recipes_folder().glob("*")}


def test_added_recipe_is_checked_and_shown(tmp_path, capsys):
    source = tmp_path / "theirs.yaml"
    source.write_text(FULL)
    assert main.main(["recipes", "add", str(source), "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    check_lines("recipes add", [line])
    told = json.loads(line)
    assert told["file"] == str(paths.user_recipes_folder() / "theirs.yaml")
    assert {"command", "variable", "engine"} <= {part["kind"] for part in told["ingredients"]}
    assert (paths.user_recipes_folder() / "theirs.yaml").read_text() == FULL
    assert not paths.trusted_recipes_file().exists()  # nobody said yes to it
    assert main.main(["recipes", "add", str(source)]) == 2
    assert main.main(["recipes", "add", str(source), "--replace"]) == 0
    assert "command     vllm serve " in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["add", "theirs.yaml"], ["import", "--", "vllm", "serve", "a/b", "--trust-remote-code"]]
)
def test_recipe_is_not_kept_if_output_fails(tmp_path, words):
    (tmp_path / "theirs.yaml").write_text(FULL)
    argv = [sys.executable, "-m", "dflash_tui", "recipes", words[0], *["--json"], *words[1:]]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(argv, stdout=full, stderr=full, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert own_recipes() == set()


def test_recipe_download_sends_no_secrets(web, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789abcdefghijABCDEFGHIJ")
    to = {"/a.yaml": httpx.Response(302, headers={"Location": "https://raw.example/b.yaml", "Set-Cookie": "a=b"})}
    seen = web(lambda request: to.get(request.url.path) or sent(FULL))
    assert main.main(["recipes", "add", "https://example.org/a.yaml", "--name", "fetched"]) == 0
    assert own_recipes() == {"fetched.yaml"}
    assert [str(request.url) for request in seen] == ["https://example.org/a.yaml", "https://raw.example/b.yaml"]
    assert not any({"authorization", "cookie"} & set(request.headers) for request in seen)


def endless(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=itertools.repeat(b"#" * 65536))


REFUSED: dict[str, tuple[str, Answer]] = {
    "http": ("http://example.org/x.yaml", endless),
    "file": ("file:///etc/passwd", endless),
    "password": ("https://user:secretsecret@example.org/x.yaml", endless),
    "downgrade": ("https://example.org/x.yaml", lambda _: httpx.Response(302, headers={"Location": "http://e.org/x"})),
    "circle": ("https://example.org/x.yaml", lambda _: httpx.Response(302, headers={"Location": "/x.yaml"})),
    "endless": ("https://example.org/x.yaml", endless),
    "a page": ("https://example.org/x.yaml", lambda _: httpx.Response(200, html="<html>")),
    "no recipe": ("https://example.org/x.yaml", lambda _: sent("title: [")),
    "a bad name": ("https://example.org/A%20b.yaml", lambda _: sent(FULL)),
    "a shipped name": ("https://example.org/gemma-4-31b.yaml", lambda _: sent(FULL)),
    "a secret": (
        "https://example.org/x.yaml",
        lambda _: sent(FULL.replace("model: owner/target", "model: hf_0123456789abcdefghijABCDEFGHIJ")),
    ),
}


@pytest.mark.parametrize(("address", "answer"), REFUSED.values(), ids=REFUSED)
def test_invalid_recipe_or_catalogue_is_refused(address, answer, web, capsys):
    web(answer)
    for action in ("add", "update"):
        assert main.main(["recipes", action, address]) in {1, 2}
        assert capsys.readouterr().err
    assert not own_recipes()
    assert not catalogue.own_catalogue_file().exists()


def test_added_recipe_must_be_bounded_regular_file(tmp_path, capsys):
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (yaml_loader.SIZE_LIMIT + 1))
    for place in (large, tmp_path, tmp_path / "missing.yaml", "/dev/zero"):
        assert main.main(["recipes", "add", str(place)]) == 2
    assert capsys.readouterr().err.count("cannot be read") == 4
    assert not own_recipes()


def test_imported_command_becomes_recipe_naming_omissions(capsys):
    words = ["vllm", "serve", "a/Big-1B", "--host", "0.0.0.0", "--max-num-seqs", "8", "--trust-remote-code"]
    assert main.main(["recipes", "import", "--name", "mine", "--", *words]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(paths.user_recipes_folder() / "mine.yaml")
    assert "omitted     --host 0.0.0.0" in err
    assert "--trust-remote-code" in err
    assert recipe_loader.find_recipe("mine").flags == {"max-num-seqs": 8, "trust-remote-code": True}
    assert main.main(["plan", "mine", "--gpu", "h100"]) == 0
    assert "--max-num-seqs 8" in capsys.readouterr().out
    assert main.main(["recipes", "import", "--json", "--", f"vllm serve a/Big-1B --api-key {'x' * 20}"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    check_lines("recipes import", [line])
    told = json.loads(line)
    assert told["left_out"][0]["what"] == "--api-key"
    assert "xxxx" not in line
    assert main.main(["recipes", "import", "--", "vllm", "serve", "gemma-4-31b", "--name", "x"]) == 0
    assert main.main(["recipes", "import", "--", "ls"]) == 2


def test_wrong_flag_of_imported_command_is_named(capsys):
    words = ["--", "vllm", "serve", "a/Big-1B", "--max-modl-len", "8"]
    assert main.main(["recipes", "import", "--json", "--name", "mine", *words]) == 0
    assert len(json.loads(capsys.readouterr().out)["mistakes"]) == 1
    assert main.main(["recipes", "import", "--replace", "--name", "mine", *words]) == 0
    assert capsys.readouterr().err.count("wrong  ") == 1
    assert main.main(["recipes", "check", "mine"]) == 2


def test_newer_catalogue_replaces_shipped_one(tmp_path, capsys):
    shipped = json.loads(catalogue.SHIPPED.read_bytes())
    newer = tmp_path / "newer.json"
    first, second, *others = shipped["pairs"]
    added = first | {"id": "qwen3.8-27b/new"}
    day = (date.fromisoformat(shipped["written"]) + timedelta(days=1)).isoformat()
    newer.write_text(json.dumps(shipped | {"written": day, "pairs": [second | {"tokens": 5}, *others, added]}))
    assert main.main(["recipes", "update", str(newer), "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    check_lines("recipes update", [line])
    told = json.loads(line)
    assert (told["added"], told["changed"], told["removed"]) == (["qwen3.8-27b/new"], [second["id"]], [first["id"]])
    assert main.main(["recipes", "catalogue", "qwen3.8-27b/new"]) == 0
    assert day in capsys.readouterr().out
    assert main.main(["recipes", "update", str(catalogue.SHIPPED)]) == 2  # which is older
    assert str(catalogue.own_catalogue_file()) in capsys.readouterr().err
