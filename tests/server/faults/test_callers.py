"""Callers in odd circumstances, and many at once: few files, little memory, no terminal, proxies."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from dflash_tui.cli import main
from dflash_tui.common import paths
from dflash_tui.engines import engine_python, inventory
from dflash_tui.runs import lifecycle, registry, server_process
from tests.support import hub_server
from tests.support.preflight_situations import engine_in
from tests.support.pty_terminal import ENTER
from tests.support.waiting import wait_until

DFLASH = (sys.executable, "-m", "dflash_tui")


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DFLASH, *words], capture_output=True, text=True, check=False, env=os.environ | env, timeout=240,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_who_lists_while_servers_come_and_go_sees_whole_lines(launch):
    """Twelve in processes of their own: each ends well with JSON, whatever is launched and stopped meanwhile."""
    launch("deaf")
    with ThreadPoolExecutor(4) as pool:
        listings = [pool.submit(run, "ps", "--all", "--json") for _ in range(12)]
        for _ in range(3):
            asyncio.run(lifecycle.stop_server(launch("deaf"), grace=0.1))
    for listing in listings:
        done = listing.result()
        assert (done.returncode, done.stderr) == (0, "")
        assert all(json.loads(line)["pid"] for line in done.stdout.splitlines())
    assert registry.list_broken_runs() == {}


def test_a_mistake_in_a_home_that_is_no_text_is_an_error():
    """What is near a misspelt command is looked for among recipes, whose folder cannot be named."""
    done = run("lauch", HOME=os.fsdecode(b"/tmp/\xff\xfe"))
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_an_answer_that_is_no_text_is_no():
    """Where the locale's encoding is UTF-8, Python itself raises over such bytes."""
    ask = "from dflash_tui.cli import console, main; main._make_streams_safe(); print(console.ask_yes('sure?'))"
    done = subprocess.run(
        [sys.executable, "-c", ask], input=b"y\xff\n", env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True, check=False, timeout=240,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"False\n")


def test_a_suspended_server_is_stopped(launch):
    """It cannot obey SIGTERM; SIGKILL ends it."""
    server = launch("deaf")
    os.kill(server.pid, signal.SIGSTOP)
    asyncio.run(lifecycle.stop_server(server, grace=0.5))
    assert not server_process.is_alive(server)
    assert server_process.list_processes(server) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_export_that_is_told_to_end_leaves_no_part_of_a_file(launch, tmp_path, number):
    run_ = launch("deaf")
    with (run_.folder / "server.log").open("ab") as log:
        log.writelines(b"INFO a line that is as long as many lines are %d\n" % n for n in range(2_000_000))
    export = subprocess.Popen([*DFLASH, "export", run_.id, "-o", str(tmp_path / "x.zip")], start_new_session=True)
    wait_until(lambda: list(tmp_path.iterdir()))
    export.send_signal(number)
    assert export.wait(60) == 128 + number
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("engine", "inspect"), ("engine", "adopt")], ids=" ".join)
@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_an_engine_that_hangs_ends_with_the_command_that_asked_it(tmp_path, words, number):
    """What was begun of the engine's, and where it was to leave its answer."""
    engine = engine_in(tmp_path / "engine")
    engine.python.unlink()
    engine.python.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 300\n")
    engine.python.chmod(0o755)
    (tmp_path / "engine" / "bin" / "vllm").touch()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    if words[1] == "inspect":
        record = inventory._record(tmp_path / "engine")
        record.parent.mkdir(parents=True)
        record.write_bytes(msgspec.json.encode(replace(engine, adopted=True)))
    command = [*DFLASH, *words, str(tmp_path / "engine")]
    asking = subprocess.Popen(command, env=os.environ | {"TMPDIR": str(temporary)}, start_new_session=True)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    engines = int((tmp_path / "pid").read_text())
    asking.send_signal(number)
    assert asking.wait(60) == 128 + number
    wait_until(lambda: not psutil.pid_exists(engines))
    assert list(temporary.iterdir()) == []


def test_ctrl_c_between_the_start_of_an_engine_and_its_answer_leaves_nothing(monkeypatch):
    """The signal arrives when it is known whom to end, and nobody waits for an answer yet."""
    started: list[subprocess.Popen[bytes]] = []

    def start(runner: Any, *_: Any) -> None:
        runner._process = subprocess.Popen(["sleep", "300"])
        started.append(runner._process)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine_python._ScriptRunner, "start", start)
    with pytest.raises(KeyboardInterrupt):
        engine_python.run_script(Path(sys.executable), "describe.py", timeout=60)
    assert started[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize(("limit", "words"), [("-n 12", "doctor demo-cpu"), ("-v 400000", "replay sample --plain")])
def test_few_files_and_little_memory_are_no_traceback(limit, words):
    command = f"ulimit {limit}; exec {' '.join(DFLASH)} {words}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=240)
    assert "Traceback" not in done.stderr
    assert done.returncode in {0, 1, 4}, done.stderr


def test_without_a_terminal_there_is_no_panel_and_where_the_help_is():
    done = run()
    assert (done.returncode, "Traceback" in done.stderr, done.stdout) == (2, False, "")
    assert "dflash-tui --help" in done.stderr


def test_in_a_dumb_terminal_the_panel_opens_and_ends(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    panel = terminal(
        program=("-c", "import os; os.environ['TERM'] = 'dumb'; from dflash_tui.cli.main import main; main()")
    )
    assert ENTER in panel.until(b"demo-cpu")
    panel.type("q")
    assert panel.ended() == 0


def test_who_attaches_asks_no_proxy_and_follows_nobody_elsewhere():
    """The key goes to the server that was named, and to no other."""
    with hub_server.running() as server, hub_server.running() as elsewhere, hub_server.running() as proxy:
        server.elsewhere = elsewhere.url
        env = os.environ | dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), proxy.url)
        env = {name: value for name, value in env.items() if name.lower() != "no_proxy"} | {"VLLM_API_KEY": "k" * 20}
        command = [*DFLASH, "attach", server.url, "--plain", "--every", "1"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env) as attached:
            wait_until(lambda: len(server.asked) > 3)
            attached.terminate()
        assert elsewhere.asked == []
        assert proxy.asked == []


@pytest.mark.parametrize("flag", ["host", "conf", "api-key", "host.x", "--host"])
def test_no_recipe_says_where_a_server_listens_or_which_key_it_takes(flag, capsys):
    """By no spelling, beginning or part of such a flag."""
    text = (paths.bundled_folder("recipes") / "demo-cpu.yaml").read_text(encoding="utf-8")
    paths.user_recipes_folder().mkdir(parents=True)
    changed = text.replace("flags:\n", f"flags:\n  {json.dumps(flag)}: x\n", 1)
    assert changed != text
    (paths.user_recipes_folder() / "mine.yaml").write_text(changed, encoding="utf-8")
    assert main.main(["plan", "mine"]) == 2
    assert "mine.yaml:" in capsys.readouterr().err
