"""`--target` and `--drafter` in place of a recipe, from folders and from a hub."""

import json
from pathlib import Path

import pytest

from dflash_tui.cli import main
from dflash_tui.common import paths
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes import recipe_loader

TARGET = {"architectures": ["Qwen3_5ForConditionalGeneration"], "mtp_num_hidden_layers": 1, "model_type": "qwen3_5",
          "text_config": {"hidden_size": 5120, "num_hidden_layers": 64, "vocab_size": 248320}}  # fmt: skip
DRAFTER = {"architectures": ["DFlash2DraftModel"], "block_size": 8, "hidden_size": 5120, "num_hidden_layers": 5,
           "dflash_config": {"mask_token_id": 4, "target_layer_ids": [1, 60]}}  # fmt: skip


def model(folder: Path, config: object) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes(2_000_000))
    return str(folder)


def only_recipe() -> Path:
    [path] = paths.derived_recipes_folder().glob("*.yaml")
    return path


def test_plan_from_two_folders_shows_its_rules(tmp_path, capsys):
    words = ["--target", model(tmp_path / "big", TARGET), "--drafter", model(tmp_path / "small", DRAFTER)]
    assert main.main(["plan", *words, "--gpu", "h100"]) == 0
    out, err = capsys.readouterr()
    assert '"num_speculative_tokens": 7' in out
    assert ">= 0.28.0" in err
    recipe = recipe_loader.load_recipe(only_recipe())
    assert (recipe.oldest_vllm, recipe.target.size_gb, recipe.method) == ("0.28.0", 0.002, Method.DFLASH)
    assert recipe.drafter
    assert recipe.drafter.max_tokens == 7
    assert main.main(["plan", only_recipe().stem, "--gpu", "h100"]) == 0  # later by its name
    assert capsys.readouterr().out == out


def test_plan_names_required_release_and_draft_count(tmp_path, capsys):
    """Before anything is installed or downloaded; the release would not start it, the drafts are only warned of."""
    words = ["--target", model(tmp_path / "big", TARGET), "--drafter", model(tmp_path / "small", DRAFTER)]
    assert main.main(["plan", *words, "--gpu", "h100", "--vllm", "0.26.0", "--set", "n=9"]) == 0
    lines = capsys.readouterr().err.splitlines()
    refused = next(place for place, line in enumerate(lines) if line.startswith("✗"))
    release, fix, drafts, fewer = lines[refused : refused + 4]  # another one may say who has the port
    assert [word in release for word in ("0.28.0", "0.26.0")] == [True, True]
    assert [word in drafts for word in ("9", "7")] == [True, True]
    assert [line.split("→ ")[1] for line in (fix, fewer)] == ["--vllm 0.28.0", "--num-speculative-tokens 7"]


def test_config_text_never_becomes_recipe_key(tmp_path):
    """Rules are written into comments, and what they quote has one line."""
    words = ["X\nenv: {LD_PRELOAD: /x.so}\n#\u2028\x85\r", "Y" * 1000]
    for number, word in enumerate(words):
        hostile = {"architectures": [word], "quantization_config": {"quant_method": word}}
        big = model(tmp_path / f"big{number}", hostile | {"architectures": [f"A {word}"]})
        small = model(tmp_path / f"small{number}", hostile | {"model_type": "gemma4_assistant"})
        assert main.main(["plan", "--target", big, "--drafter", small, "--gpu", "h100"]) == 0
    texts = [path.read_text() for path in paths.derived_recipes_folder().glob("*.yaml")]
    assert len(texts) == len(words)
    assert not any("\nenv" in text or "YYY" in text for text in texts)


@pytest.mark.parametrize(("method", "tokens"), [("mtp", 3), ("ngram", 5)])
def test_a_target_alone_drafts_by_itself(tmp_path, method, tokens, capsys):
    assert main.main(["plan", "--target", model(tmp_path / "big", TARGET), "--method", method, "--gpu", "h100"]) == 0
    recipe = recipe_loader.load_recipe(only_recipe())
    assert (recipe.method.value, recipe.num_speculative_tokens, recipe.drafter) == (method, tokens, None)
    assert ("--speculative-config" in capsys.readouterr().out) is (method != "none")


def test_new_recipe_is_created_from_two_models(tmp_path, capsys):
    words = ["--target", model(tmp_path / "big", TARGET), "--drafter", model(tmp_path / "small", DRAFTER)]
    assert main.main(["recipes", "new", "mine", *words]) == 0
    assert main.main(["recipes", "check", "mine"]) == 0
    assert main.main(["plan", "mine", "--gpu", "h200"]) == 0
    assert capsys.readouterr().err
    assert main.main(["recipes", "list"]) == 0
    out = capsys.readouterr().out
    assert "any GPU" in next(line for line in out.splitlines() if line.startswith("mine "))
    assert "DFlash2DraftModel" in (paths.user_recipes_folder() / "mine.yaml").read_text()


def test_hub_repository_is_read_without_weights(hub, capsys):
    hub.repos = {"owner/big": {"config.json": json.dumps(TARGET).encode(), "model.safetensors": bytes(3_000_000)}}
    assert main.main(["plan", "--target", "owner/big", "--gpu", "h100"]) == 0
    assert recipe_loader.load_recipe(only_recipe()).target.size_gb == 0.003
    assert not hub.sent("model.safetensors")
    assert '"mtp"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("files", "refusal", "word"),
    [
        ({"model.gguf": b"GGUF"}, "", "GGUF"),
        ({"config.json": b"{}", "model.safetensors": b"x"}, "anonymous", "token"),
        ({}, "missing", "spelling"),
    ],
)
def test_unreadable_hub_repository_is_explained(hub, files, refusal, word, capsys):
    hub.repos, hub.refusal = {"owner/big": files}, refusal
    assert main.main(["plan", "--target", "owner/big", "--gpu", "h100"]) in {1, 2}
    assert word in capsys.readouterr().err
    assert not list(paths.derived_recipes_folder().glob("*"))


def test_target_alone_lists_drafters_of_hub_tree(hub, capsys):
    """A target without a head of its own: the one that the tree has is offered."""
    hub.repos = {
        "owner/big": {
            "config.json": json.dumps(TARGET | {"mtp_num_hidden_layers": 0}).encode(),
            "model.safetensors": b"w",
        },
        "z/big-DFlash2": {"config.json": json.dumps(DRAFTER).encode(), "model.safetensors": b"w"},
    }
    hub.tags = {"z/big-DFlash2": ["base_model:owner/big"]}
    assert main.main(["plan", "--target", "owner/big", "--gpu", "h100"]) == 2
    error = capsys.readouterr().err
    assert error.count("--drafter z/big-DFlash2") == 2
    assert "0.28.0" in error
    assert main.main(["plan", "--target", "owner/big", "--drafter", "z/big-DFlash2", "--gpu", "h100"]) == 0
    assert not hub.sent("model.safetensors")


MISTRAL = '{"chat_template": "[TOOL_CALLS]"}'
CALLS = """<tool_call>{"name": x, "arguments": y}</tool_call>"""


@pytest.mark.parametrize(
    ("files", "parser"),
    [
        ({"chat_template.jinja": "{{ messages }}"}, None),
        ({"chat_template.jinja": CALLS}, "hermes"),
        ({"tokenizer_config.json": MISTRAL}, "mistral"),
    ],
)
def test_plan_takes_parser_from_chat_template(hub, tmp_path, capsys, files, parser):
    """As a folder, and from the hub."""
    folder = model(tmp_path / "big", TARGET)
    for file, text in files.items():
        (tmp_path / "big" / file).write_text(text)
    hub.repos = {"owner/big": {path.name: path.read_bytes() for path in (tmp_path / "big").iterdir()}}
    for name in (folder, "owner/big"):
        assert main.main(["plan", "--target", name, "--gpu", "h100", "--json"]) == 0
        out, err = capsys.readouterr()
        argv = json.loads(out)["argv"]
        assert ("no tool-call-parser: " in err) == (parser is None)
        assert (argv[argv.index("--tool-call-parser") + 1] if "--tool-call-parser" in argv else None) == parser
