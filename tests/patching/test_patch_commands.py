"""`dflash-tui patch` on environments with the real files of published wheels, adopted as a user would adopt them."""

import json
import re
from pathlib import Path

import pytest

from dflash_tui.common import paths
from dflash_tui.planning import patch_file
from tests.patching.conftest import tree
from tests.support import command_line, wheels
from tests.support.json_lines import check_lines
from tests.support.selection import leave_to_long

WANTED = {path for name in sorted(paths.list_patch_files()) for path in patch_file.load_patch(name).paths}
WANTED |= {
    patch.upstream.path for name in sorted(paths.list_patch_files()) if (patch := patch_file.load_patch(name)).upstream
}
WANTED |= {"__init__.py", "v1/spec_decode/dflash.py"}  # what tells a vLLM with DFlash
NEEDED = {
    "0.20.2": [
        "dflash-aux-layers",
        "dflash-draft-flash-attn",
        "dflash-lookahead-block",
        "qwen3-next-eagle3",
        "triton-non-causal",
    ],
    "0.21.0": ["dflash-aux-layers", "dflash-lookahead-block", "gemma4-draft-mm-prefix", "qwen3-next-eagle3"],
    "0.23.0": ["gemma4-draft-mm-prefix", "qwen3-next-eagle3"],
    "0.24.0": [],
    "0.29.0": ["dflash-no-block-drop"],
    "0.32.0": [],
}


def dflash(*words: str | Path, code: int = 0) -> command_line.Said:
    """Run the command line in this process: sixty new ones would take a minute."""
    return command_line.run(*map(str, words), code=code)


def fill(folder: Path, version: str) -> None:
    """Put the files of a published wheel into an environment, with a stand-in for its program."""
    with wheels.skip_if_unreachable():
        wheels.unpack("vllm", version, WANTED, next(folder.glob("lib/python3.*/site-packages")))
    (folder / "bin" / "vllm").write_text("#!/bin/sh\n")


def states(*words: str | Path) -> dict[str, str]:
    lines = dflash("patch", "status", *words, "--json").stdout.splitlines()
    check_lines("patch status", lines)
    return {found["name"]: found["state"] for found in map(json.loads, lines)}


@pytest.mark.index
@pytest.mark.parametrize("version", leave_to_long(NEEDED, but=["0.20.2", "0.32.0"]))
def test_apply_makes_engine_with_needed_patches(version, real_python):
    """Twice in a row makes one; modules that need a GPU or torch are mentioned, not guessed at."""
    fill(real_python, version)
    before = tree(real_python)
    dflash("engine", "adopt", real_python)
    engine = ("--engine", real_python)
    at_first = states(*engine)
    assert {name for name in NEEDED[version] if at_first[name] != "absent-needed"} == set()
    said = dflash("patch", "apply", *engine, "--dry-run").stdout
    assert not list(paths.engines_folder().glob("*-patched-*"))
    done = json.loads(dflash("patch", "apply", *engine, "--json").stdout)
    assert sorted(done["names"]) == NEEDED[version]
    check_lines("patch apply", [json.dumps(done)])
    if NEEDED[version]:
        assert done["diffs"].keys() == {path for name in NEEDED[version] for path in patch_file.load_patch(name).paths}
        assert "ModuleNotFoundError" in done["note"]
        assert all(diff in said for diff in done["diffs"].values())
    patched = ("--engine", done["engine"])
    assert {name for name, state in states(*patched).items() if state == "applied-by-us"} == set(NEEDED[version])
    after = tree(Path(done["engine"]))
    assert done["engine"] in dflash("patch", "apply", *engine).stdout or not NEEDED[version]
    assert dflash("patch", "apply", *patched).stdout == "nothing to apply\n"
    assert tree(Path(done["engine"])) == after
    assert "✗" not in dflash("patch", "verify", *patched).stdout
    assert json.loads(dflash("patch", "revert", *patched, "--json").stdout)["engine"] == str(real_python)
    assert f"{real_python} was never changed" in dflash("patch", "revert", *patched).stdout
    assert tree(real_python) == before
    assert states(*engine) == at_first


@pytest.mark.index
def test_one_patch_by_name_and_its_unit(real_python):
    """Half of a unit is refused with exit code 5 and a way out; an experiment and an alternative come only by name."""
    fill(real_python, "0.20.2")
    dflash("engine", "adopt", real_python)
    engine = ("--engine", real_python)
    refused = dflash("patch", "apply", *engine, "--only", "triton-non-causal", code=5)
    assert "--only triton-non-causal --only dflash-draft-flash-attn" in refused.stderr
    names = ("dflash-selector-scope", "dflash-draft-flash-attn", "gemma4-dflash-embed-scale")
    only = [word for name in names for word in ("--only", name)]
    beside = dflash("patch", "apply", *engine, *only, "--only", "triton-non-causal", code=5)
    assert re.search("dflash-selector-scope .* alternative to triton-non-causal", beside.stderr)
    made = dflash("patch", "apply", *engine, *only).stdout
    assert made.startswith(f"{', '.join(names)}: {paths.engines_folder()}/")
    patched = ("--engine", made.rpartition(": ")[2].strip())
    again = dflash("patch", "apply", *patched, "--only", names[0], "--only", "qwen3-next-eagle3", "--dry-run")
    assert "· dflash-selector-scope: applied-by-us" in again.stderr
    assert "experimental, only by name" in dflash("patch", "status", *engine).stdout
    diff = dflash("patch", "diff", *engine, "--only", "dflash-selector-scope", "--only", names[1]).stdout
    assert "+    use_non_causal = False" in diff
    refused = dflash("patch", "apply", *patched, "--only", "triton-non-causal", code=5)
    assert re.search("triton-non-causal .* alternative to dflash-selector-scope, .* already", refused.stderr)


@pytest.mark.index
def test_a_recipe_names_its_own(real_python):
    """What its plan needs on this engine and class of GPU, and why the others are not needed."""
    fill(real_python, "0.20.2")
    dflash("engine", "adopt", real_python)
    words = ("gemma-4-31b", "--engine", real_python, "--profile", "seed", "--gpu", "gb10")
    assert states(*words) == {
        "triton-non-causal": "absent-needed",
        "dflash-draft-flash-attn": "absent-needed",
        "dflash-lookahead-block": "absent-needed",
        "gemma4-draft-mm-prefix": "not-applicable",
        "gb10-cutlass-fp8": "not-applicable",
    }
    assert "for builds with CUDA 12" in dflash("patch", "status", *words).stdout
    off = ("--set", "patches.triton-non-causal=false")
    assert "requires" in dflash("patch", "apply", *words, *off, code=5).stderr
    dflash("patch", "apply", *words)
    assert states(*words)["dflash-lookahead-block"] == "applied-by-us"
    listed = [json.loads(line) for line in dflash("engine", "list", "--json").stdout.splitlines()]
    assert [(engine["base"], len(engine["patches"])) for engine in listed] == [("", 0), (str(real_python), 3)]
    assert "made from real" in dflash("engine", "list").stdout
    assert states("qwen3-coder-next", "--engine", real_python, "--gpu", "gb10") == {
        "qwen3-next-eagle3": "absent-needed",
        "dflash-aux-layers": "absent-needed",
        "dflash-lookahead-block": "absent-needed",
    }
    dflash("engine", "remove", real_python)
    assert "no engine called" in dflash("patch", "status", "--engine", real_python, code=2).stderr


@pytest.mark.index
def test_a_diff_needs_no_engine(folders):
    """The files come from the published wheel, which is not downloaded."""
    words = ("qwen3-coder-next", "--gpu", "gb10", "--profile", "seed", "--only", "qwen3-next-eagle3")
    [line] = dflash("patch", "diff", *words, "--json").stdout.splitlines()
    check_lines("patch diff", [line])
    [(path, text)] = json.loads(line).items()
    assert path == "model_executor/models/qwen3_next.py"
    assert [line for line in text.splitlines() if line[0] in "+-"][2:] == ["+    SupportsEagle3,"] * 2
    assert not paths.engines_folder().exists()


def test_invalid_request_is_reported(folders, snapshot):
    """Nothing named, a recipe that is not installed, a patch that does not exist."""
    assert dflash("patch", "status", code=2).stderr == snapshot
    missing = dflash("patch", "apply", "demo-cpu", code=2)
    assert "dflash-tui engine install demo-cpu" in missing.stderr
    assert "ACTION" in dflash("patch", code=2).stderr
    assert "so name one" in dflash("patch", "status", "--engine", "x", "--set", "max-model-len=1", code=2).stderr


@pytest.mark.index
def test_broken_user_patch_stops_only_its_recipes(real_python):
    """Status, engine inspect and doctor name it with the reason; a launch that needs it is refused with that reason."""
    fill(real_python, "0.20.2")
    dflash("engine", "adopt", real_python)
    own = paths.user_patches_folder()
    own.mkdir(parents=True)
    (own / "triton-non-causal.yaml").write_text('"\\e[31mtitle": x\n')
    engine = ("--engine", real_python)
    assert states(*engine)["triton-non-causal"] == "unusable"
    said = dflash("patch", "status", *engine)
    assert "qwen3-next-eagle3" in said.stdout
    assert "! triton-non-causal is unusable: " in said.stderr
    assert "triton-non-causal.yaml:1: " in said.stderr
    assert "\x1b" not in said.stderr
    assert "patch              triton-non-causal is unusable" in dflash("engine", "inspect", real_python).stdout
    assert "triton-non-causal is not valid" in dflash("doctor").stdout
    assert dflash("patch", "apply", *engine, "--only", "qwen3-next-eagle3").stdout.startswith("qwen3-next-eagle3: ")
    assert "✗" not in dflash("patch", "verify", *engine).stdout
    refused = dflash("plan", "gemma-4-31b", *engine, "--profile", "seed", "--gpu", "gb10", code=2)
    assert "triton-non-causal.yaml:1: " in refused.stderr
    dflash("plan", "qwen3-coder-next", *engine, "--gpu", "gb10")


@pytest.mark.index
def test_verify_tells_what_others_changed(real_python):
    """Exit code 5, the file, and whether it was ours."""
    fill(real_python, "0.21.0")
    dflash("engine", "adopt", real_python)
    engine = ("--engine", real_python)
    changed = next(real_python.glob("lib/python3.*/site-packages/vllm/model_executor/models/qwen3_next.py"))
    changed.write_text(changed.read_text() + "# theirs\n")
    said = dflash("patch", "verify", *engine, code=5).stdout
    assert "✗ model_executor/models/qwen3_next.py: modified, not by dflash-tui" in said
    assert said.count("✗") == 1
    assert "✗" not in dflash("patch", "verify", *engine, "--only", "triton-non-causal").stdout
    assert states(*engine)["qwen3-next-eagle3"] == "absent-needed"
