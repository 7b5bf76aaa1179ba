"""`recipes` on the command line: list, check, show, new, schema; and the schema and the README that go with recipes."""

import json
import re
from pathlib import Path
from typing import Any, cast

import jsonschema
import msgspec
import pytest
import yaml

from dflash_tui.cli import main
from dflash_tui.common import paths, yaml_loader
from dflash_tui.common.errors import RecipeError
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import serve_flags
from dflash_tui.planning.recipes import recipe, recipe_loader
from dflash_tui.presentation import recipe_text
from tests.unit.planning.recipes.test_recipe import FULL, MISTAKES

RECIPES = paths.bundled_folder("recipes")
SHIPPED = sorted(path.stem for path in RECIPES.glob("[!_]*.yaml"))


@pytest.fixture
def mine(folders) -> Path:
    """The user's folder of recipes."""
    folder: Path = folders / "config" / "dflash-tui" / "recipes"
    folder.mkdir(parents=True)
    return folder


def test_the_list_names_every_recipe(capsys):
    """With its status, tokens, release and hardware; as JSON one object a line, each a whole recipe."""
    assert main.main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == SHIPPED
    assert re.search(r"qwen3-coder-next +experimental +15 +0\.33\.0 +gb10 +Qwen3-Coder-Next", "\n".join(lines))
    assert main.main(["recipes", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["name"] for entry in found] == SHIPPED
    assert found[SHIPPED.index("gemma-4-31b")]["hardware"]["gb10"]["weights_gb"] == 33


def test_check_reads_all_or_the_named(mine, capsys):
    """0 when all are right; 2 and the reason when one is not, and the others are checked all the same."""
    assert main.main(["recipes", "check"]) == 0
    assert sum(line.startswith("✓ ") for line in capsys.readouterr().out.splitlines()) == len(SHIPPED)
    (mine / "a.yaml").write_text(FULL.replace("mode: compile", "mode: fast"))
    (mine / "b.yaml").write_text(FULL)
    assert main.main(["recipes", "check", str(mine / "a.yaml"), "b", "demo-cpu"]) == 2
    wrong, right, *ingredients, demo = capsys.readouterr().out.splitlines()
    line = 1 + FULL.splitlines().index("mode: compile")
    assert re.match(re.escape(f"✗ {mine / 'a.yaml'}:{line}: mode: ") + ".*'fast'", wrong)
    assert right == f"✓ {mine / 'b.yaml'}: 8 plans"
    assert ingredients[0].startswith("  command     vllm serve ")
    assert all(line.startswith("  ") for line in ingredients)
    assert demo.endswith("demo-cpu.yaml: 1 plan")


@pytest.mark.parametrize("words", [["check", "nope"], ["new", "x", "--like", "nope"]])
def test_missing_recipe_name_exits_with_2(words, capsys, folders):
    """And nothing is written."""
    assert main.main(["recipes", *words]) == 2
    said = capsys.readouterr()
    assert "nope" in said.out + said.err
    assert not (folders / "config").exists()


def test_show_prints_the_file(capsys):
    """The file alone on stdout, so that it can be redirected; its place on stderr."""
    assert main.main(["recipes", "show", "qwen3.5-27b"]) == 0
    said = capsys.readouterr()
    assert said.out == (RECIPES / "qwen3.5-27b.yaml").read_text()
    assert said.err == f"{RECIPES / 'qwen3.5-27b.yaml'}\n"


def test_new_recipe_passes_check_and_has_plan(folders, capsys, snapshot):
    """The template passes the check, has a plan, and names the schema that is written beside it."""
    assert main.main(["recipes", "new", "mine-1.0"]) == 0
    said = capsys.readouterr()
    path = Path(said.out.strip())
    assert path == folders / "config" / "dflash-tui" / "recipes" / "mine-1.0.yaml"
    assert "recipes check mine-1.0" in said.err
    assert path.read_text().splitlines()[:2] == snapshot
    assert path.with_name("recipe.schema.json").read_text() == recipe_text.schema_text()
    assert main.main(["recipes", "check", "mine-1.0"]) == 0
    assert main.main(["plan", "mine-1.0", "--gpu", "h100"]) == 0
    assert "vllm serve owner/target" in capsys.readouterr().out


def test_a_new_recipe_overwrites_nothing(mine, capsys):
    """2, and the file is as it was."""
    (mine / "mine.yaml").write_text(FULL)
    assert main.main(["recipes", "new", "mine"]) == 2
    assert "already exists" in capsys.readouterr().err
    assert (mine / "mine.yaml").read_text() == FULL


def test_shipped_schema_matches_structs(capsys):
    """What is printed is what is shipped; `recipes schema` writes it anew after a change of the structs."""
    assert main.main(["recipes", "schema"]) == 0
    printed, shipped = json.loads(capsys.readouterr().out), json.loads((RECIPES / "recipe.schema.json").read_text())
    assert list_key_names(printed) == list_key_names(shipped)


def list_key_names(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the names that keys may have in place; msgspec refers to them from 0.23 on."""

    def replace_names(part: Any) -> Any:
        if isinstance(part, list):
            return [replace_names(each) for each in part]
        if not isinstance(part, dict):
            return part
        found = {key: replace_names(value) for key, value in part.items()}
        if names := found.get("propertyNames"):
            names = schema["$defs"][names["$ref"].rpartition("/")[2]] if "$ref" in names else names
            found["propertyNames"] = sorted(names["enum"]) if "enum" in names else names
        return found

    return cast("dict[str, Any]", replace_names(schema))


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((RECIPES / "recipe.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_schema_and_structs_reject_same_files(validator, tmp_path):
    """Types, patterns, bounds, unknown and missing keys; every shipped recipe fits it."""
    validator.validate(yaml_loader.parse_yaml_value(FULL))
    for name in (*SHIPPED, "_template"):
        validator.validate(yaml_loader.parse_yaml_value((RECIPES / f"{name}.yaml").read_text()))
    of_structs = ("expected `", "matching regex", "unknown key", "did you mean", "missing required", "invalid enum")
    missed = []
    for old, new, key, _ in MISTAKES:
        path = tmp_path / "mine.yaml"
        path.write_text(FULL.replace(old, new))
        with pytest.raises(RecipeError) as caught:
            recipe_loader.load_recipe(path)
        if any(word in str(caught.value) for word in of_structs) and validator.is_valid(
            yaml_loader.parse_yaml_value(path.read_text())
        ):
            missed.append(key)
    assert missed == []


def test_the_readme_explains_every_key():
    """Each field of each part of a recipe stands in recipes/README.md as code."""
    text = (RECIPES / "README.md").read_text()
    parts = [kind for kind in vars(recipe).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    of_hugging_face = {recipe.ModelConfig, recipe.VisionConfig}
    fields = {name for kind in parts if kind not in of_hugging_face for name in kind.__struct_fields__}
    assert len(fields) > 50
    assert {name for name in fields if not re.search(rf"`(?:\w+\.)?{name}`", text)} == set()
    for name in [*serve_flags.RESERVED_FLAGS, *(kind.value for kind in Hardware if kind is not Hardware.UNKNOWN)]:
        assert f"`{name}`" in text


def test_readme_has_section_for_each_recipe():
    """And for nothing else that looks like one; commands that it shows exist."""
    text = (RECIPES / "README.md").read_text()
    assert [name for name in re.findall(r"^### (.+)$", text, re.MULTILINE) if name in SHIPPED] == SHIPPED
    for action in ("check", "new", "schema"):
        assert f"dflash-tui recipes {action}" in text


def test_recipe_texts_are_not_cut_by_comments():
    """` #` begins a comment in YAML, also inside a sentence without quotes; half a bracket tells."""
    words: list[str] = []
    pending = [yaml.safe_load((RECIPES / f"{name}.yaml").read_text()) for name in (*SHIPPED, "_template")]
    while pending:
        part = pending.pop()
        if isinstance(part, dict | list):
            pending += part.values() if isinstance(part, dict) else part
        elif isinstance(part, str):
            words.append(part)
    assert [word for word in words if word.count("(") != word.count(")")] == []
