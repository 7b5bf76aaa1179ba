"""Files that flags name: found where the user stands or in the target's repository, and named when they are nowhere."""

import pytest
import yaml

from dflash_tui.experiments.variation import parse_variation
from dflash_tui.launch.preflight.pair import check_files
from dflash_tui.machine import nvml
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.planning.derivation.imported_recipe import import_recipe
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.planning.serve_flags import list_missing, make_absolute
from dflash_tui.tui.dialogs.options import change_option
from tests.support import command_line


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a template and a folder, where the user stands."""
    (tmp_path / "t.jinja").write_text("{{ x }}")
    (tmp_path / "adapter").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nvml, "probe_gpus", GpuProbe)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        ("chat-template", "t.jinja", "{here}/t.jinja"),
        ("chat_template", "adapter/../t.jinja", "{here}/t.jinja"),
        ("chat-template", "{{ t.jinja }}", "{{ t.jinja }}"),
        ("chat-template", "a\nb", "a\nb"),
        ("chat-template", "other.jinja", "other.jinja"),
        ("chat-template", "x" * 5000, "x" * 5000),
        ("tool-parser-plugin", "~none/p.py", "~none/p.py"),
        ("tokenizer", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("tokenizer", "adapter", "{here}/adapter"),
        ("lora-modules", "mine=adapter", "mine={here}/adapter"),
        ("download-dir", "models", "{here}/models"),
        ("served-model-name", "t.jinja", "t.jinja"),
        ("chat-template", None, None),
    ],
)
def test_file_path_becomes_absolute_in_flag(here, name, value, path):
    assert make_absolute(name, value) == (path and path.replace("{here}", str(here)))


def test_file_setting_becomes_absolute_on_every_route(here):
    """By --set, --vary, the options of the panel and a command that is imported."""
    path = str(here / "t.jinja")
    planned = command_line.planned("demo-cpu", "--set", "chat-template=t.jinja")
    assert planned.plan.find_flag("chat-template") == path
    assert planned.plan.relaunch_request.settings == {"chat-template": path}
    arms = parse_variation("chat-template=t.jinja,none.jinja").arms
    assert [arm.settings["chat-template"] for arm in arms.values()] == [path, "none.jinja"]
    assert change_option(LaunchRequest(recipe="demo-cpu"), "chat-template", "t.jinja").settings == {
        "chat-template": path
    }
    imported = import_recipe(["vllm serve Qwen/Qwen3-8B --chat-template t.jinja"])
    assert yaml.safe_load(imported.text)["flags"] == {"chat-template": path}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("value", "is_missing"),
    [("none.jinja", True), ("/none/t.jinja", True), ("t.jinja", False), ("{% if x %}a{% endif %}", False),
     ("template_chatml.jinja", False), ("null", False)],
)  # fmt: skip
def test_missing_flag_file_fails_check(value, is_missing):
    planned = command_line.planned("demo-cpu", "--set", f"chat-template={value}")
    assert [check.name for check in check_files(planned.resolved)] == ["file"] * is_missing
    assert bool(list_missing(planned.resolved.flags)) is is_missing


def test_flag_file_in_target_repository_is_found(here):
    """As the cache holds it: a recipe's template beside the weights needs no path."""
    model = here / "model"
    model.mkdir()
    for name, text in {"config.json": "{}", "model.safetensors": "x", "unsloth.jinja": "{{ x }}"}.items():
        (model / name).write_text(text)
    words = ["qwen3.5-35b-a3b", "--gpu", "gb10", "--set", "chat-template=unsloth.jinja"]
    with_model = command_line.planned(*words, "--set", f"target.model={model}")
    assert with_model.plan.find_flag("chat-template") == str(model / "unsloth.jinja")
    assert list(check_files(with_model.resolved)) == []
    [check] = check_files(command_line.planned(*words).resolved)
    assert "unsloth.jinja" in check.finding
