"""`recipes catalogue`, and the drafters that it knows for a target without one."""

import json
from typing import Any

import pytest

from dflash_tui.cli import main
from dflash_tui.planning.derivation import catalogue

PAIRS = {pair.id: pair for pair in catalogue.load_catalogue().pairs}


def rows(capsys: Any, *words: str) -> list[dict[str, Any]]:
    assert main.main(["recipes", "catalogue", *words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("words", "within", "without"),
    [
        (["--fits", "--gpu", "rtx-5090"], "qwen3.8-27b/dflash2", "glm-5.3-flash/mtp"),
        (["--fits", "--gpu", "h100", "--method", "eagle3"], "gpt-oss-120b/eagle3", "gpt-oss-120b/dflash-none"),
    ],
)
def test_pairs_are_chosen_by_method_and_memory(words, within, without, capsys):
    names = [row["id"] for row in rows(capsys, *words)]
    assert within in names
    assert without not in names
    assert 0 < len(names) < len(PAIRS)


def test_row_names_fitting_precision_and_serve_command(capsys):
    [row] = rows(capsys, "qwen3.8-27b/dflash2", "--gpu", "rtx-5090")
    assert (row["model"], row["need_gib"], row["fits"], row["need_without"]) == (
        "unsloth/Qwen3.8-27B-NVFP4",
        28.5,
        True,
        [],
    )
    words = ["--target", "unsloth/Qwen3.8-27B-NVFP4", "--drafter", "z-lab/Qwen3.8-27B-DFlash2"]
    assert row["command"].split()[2:] == words


def test_a_pair_is_shown_with_every_source(capsys):
    assert main.main(["recipes", "catalogue", "qwen3.8-27b/dflash2", "--gpu", "gb10"]) == 0
    out, err = capsys.readouterr()
    pair = PAIRS["qwen3.8-27b/dflash2"]
    for figure in pair.figures:
        assert f"({figure.source}" in out
    assert all(text in out for text in (*pair.unconfirmed, *pair.bugs))
    assert "dflash-tui up --target" in err


@pytest.mark.parametrize(
    ("words", "part"),
    [(["--gpu", "ada"], "gb10"), (["qwen3-8b/dflas"], "qwen3-8b/dflash'")],
)
def test_unknown_name_is_refused(words, part, capsys):
    assert main.main(["recipes", "catalogue", *words]) == 2
    assert part in capsys.readouterr().err


def folder_with(path: Any, config: dict[str, Any]) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(b"x")
    return str(path)


def test_target_alone_is_offered_its_known_drafters(tmp_path, capsys):
    shape = {"architectures": ["Qwen3_5ForConditionalGeneration"], "mtp_num_hidden_layers": 1}
    assert main.main(["plan", "--target", folder_with(tmp_path / "Qwen3.8-27B-FP8", shape), "--gpu", "h100"]) == 0
    out, err = capsys.readouterr()
    assert "--drafter z-lab/Qwen3.8-27B-DFlash2" in err
    assert '"mtp"' in out  # its own head drafts all the same
    model = folder_with(tmp_path / "gpt-oss-20b", {"architectures": ["GptOssForCausalLM"]})
    assert main.main(["plan", "--target", model, "--gpu", "h100"]) == 2
    assert "--drafter z-lab/gpt-oss-20b-DFlash" in capsys.readouterr().err.splitlines()[-1]
    assert main.main(["plan", "--target", model, "--method", "ngram", "--gpu", "h100"]) == 0
    assert "--drafter" not in capsys.readouterr().err
