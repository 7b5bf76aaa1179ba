"""Patch files: what is refused and why, whose win, and which releases and machines need one."""

import json
from pathlib import Path

import pytest

from dflash_tui.common import paths
from dflash_tui.common.errors import RecipeError
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import patch_file
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import iterate_layers
from tests.support.plans import plan_of

SHIPPED = sorted(path.stem for path in paths.bundled_folder("patches").glob("*.yaml"))


@pytest.fixture
def own() -> Path:
    """The folder of the user's own patches."""
    folder = paths.user_patches_folder()
    folder.mkdir(parents=True)
    return folder


def text_of(name: str = "cpu-expand-kernel") -> str:
    return (paths.bundled_folder("patches") / f"{name}.yaml").read_text()


@pytest.mark.parametrize(
    "path",
    ["/etc/x.py", "utils/../../x.py", "utils/x.so"],
)
def test_path_outside_package_is_refused(path, own):
    """A patch file may only name Python files below the package."""
    (own / "evil.yaml").write_text(text_of().replace("utils/cpu_triton_utils.py", repr(path)[1:-1].join('""')))
    with pytest.raises(RecipeError, match=r"evil\.yaml:\d+: (files|upstream)"):
        patch_file.load_patch("evil")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title:", "titel:", "did you mean 'title'"),
        ('versions: ">=0.20.0', 'versions: "newest', "versions"),
        ("https://", "file://", "link"),
        (
            "recipes:",
            "by_key: {versions: '>=0.33.0', speculation: {auth_token: abcdefgh}}\nrecipes:",
            "by_key.speculation",
        ),
        ("recipes:", "without_patch: {why: w, env: {DB_PASSWORD: hunter2hunter2}}\nrecipes:", "without_patch.env"),
    ],
)
def test_broken_patch_file_names_place_and_reason(old, new, said, own):
    """With the file's name and the key, as a recipe does."""
    assert old in text_of()
    (own / "broken.yaml").write_text(text_of().replace(old, new, 1))
    with pytest.raises(RecipeError) as caught:
        patch_file.load_patch("broken")
    assert "broken.yaml" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["\x1b[31mred"])
def test_unsafe_patch_name_is_refused(name, own, snapshot):
    """It becomes part of a record, of commands and of settings."""
    (own / f"{name}.yaml").write_text(text_of())
    usable, broken = patch_file.load_all_patches()
    assert [patch.name for patch in usable] == SHIPPED
    assert broken.keys() == {name}
    assert broken[name].rpartition(".yaml: ")[2] == snapshot
    json.dumps(broken).encode()
    assert all(" " <= letter <= "~" for letter in "".join(broken.values()))


def test_broken_patch_file_does_not_hide_others(own):
    """Whatever is the matter with it: no YAML, no text, no file, a dangling link, unreadable."""
    (own / "yaml.yaml").write_text("title: [")
    (own / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    (own / "folder.yaml").mkdir()
    (own / "dangling.yaml").symlink_to(own / "nowhere")
    (own / "triton-non-causal.yaml").write_text("")
    usable, broken = patch_file.load_all_patches()
    assert {patch.name for patch in usable} == set(SHIPPED) - {"triton-non-causal"}
    assert broken.keys() == {"yaml", "bytes", "folder", "dangling", "triton-non-causal"}
    assert "yaml.yaml:2: not YAML" in broken["yaml"]
    assert "No such file" in broken["dangling"]
    with pytest.raises(RecipeError, match="triton-non-causal"):
        plan_of("gemma-4-31b", Hardware.GB10, profile="seed")
    assert plan_of("qwen3-coder-next", Hardware.GB10).skipped_patches


def test_patch_key_never_replaces_plan_keys(own):
    """The method, the drafter and the number of tokens are what was asked for, whatever a patch file says."""
    keys = "{method: ngram, model: other, num_speculative_tokens: 1, disable_eagle_block_drop: true}"
    text = text_of("dflash-no-block-drop").replace("{disable_eagle_block_drop: true}", keys)
    (own / "dflash-no-block-drop.yaml").write_text(text)
    plan = plan_of("qwen3.5-35b-a3b", Hardware.GB10, "0.32.0")
    [config] = [json.loads(word) for word in plan.argv if word.startswith('{"method"')]
    assert (config["method"], config["num_speculative_tokens"]) == ("dflash", 15)
    assert config["model"] == plan.drafter
    assert config["disable_eagle_block_drop"] is True


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_patch_names_existing_files(name):
    """Partners, alternatives and recipes; a recipe that names a patch is named by it."""
    patch = patch_file.load_patch(name)
    assert set(patch.together_with) <= set(SHIPPED)
    assert patch.instead_of in {None, *SHIPPED}
    assert patch.name not in patch.together_with
    users = {
        recipe
        for recipe in (path.stem for path in paths.bundled_folder("recipes").glob("[!_]*.yaml"))
        if any(name in layer.patches for _, layer in iterate_layers(recipe_loader.find_recipe(recipe)))
    }
    assert users == set(patch.recipes)
    assert not (patch.experimental and users)
    assert patch.link
