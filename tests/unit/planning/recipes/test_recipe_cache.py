"""Recipes that were read before: the same ones come back, and nothing that a stale or foreign file says."""

import msgspec
import pytest

from dflash_tui.common import paths
from dflash_tui.planning.recipes import recipe_cache, recipe_checks, recipe_loader

CACHE = "recipes.msgpack"


@pytest.fixture
def parsed(folders, monkeypatch) -> list[str]:
    """The recipes that were read as YAML since."""
    read, names = recipe_checks.read_recipe, list[str]()

    def note(path, text):
        names.append(path.stem)
        return read(path, text)

    monkeypatch.setattr(recipe_checks, "read_recipe", note)
    recipe_loader.load_all_recipes()
    names.clear()
    return names


def write_own(name: str, text: str) -> None:
    folder = paths.user_recipes_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(text)


def test_what_comes_back_is_what_was_read(parsed):
    usable, broken = recipe_loader.load_all_recipes()
    assert (parsed, broken) == ([], {})
    fresh = {name: recipe_loader.load_recipe(path) for name, path in recipe_loader.list_recipe_files().items()}
    assert (usable, repr(usable)) == (fresh, repr(fresh))


def test_only_a_text_that_changed_is_read_again(parsed):
    text = recipe_loader.recipe_path("demo-cpu").read_text()
    write_own("mine", text.replace("title: ", "title: My "))
    assert recipe_loader.load_all_recipes()[0]["mine"].title.startswith("My ")
    write_own("mine", text.replace("title: ", "title: Our "))
    assert recipe_loader.load_all_recipes()[0]["mine"].title.startswith("Our ")
    assert parsed == ["mine", "mine"]


def test_a_file_that_is_broken_is_never_kept(parsed):
    write_own("mine", "title: [")
    assert [*recipe_loader.load_all_recipes()[1]] == ["mine"]
    assert [*recipe_loader.load_all_recipes()[1]] == ["mine"]
    assert parsed == ["mine", "mine"]


def test_a_recipe_names_patches_that_are_there_now(parsed):
    """What does not follow from its text alone is looked at each time."""
    patches = paths.user_patches_folder()
    patches.mkdir(parents=True)
    (patches / "own.yaml").write_text("")
    write_own("mine", recipe_loader.recipe_path("demo-cpu").read_text() + "\nprofiles:\n  seed:\n    patches: [own]\n")
    assert "mine" in recipe_loader.load_all_recipes()[0]
    (patches / "own.yaml").unlink()
    assert [*recipe_loader.load_all_recipes()[1]] == ["mine"]


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80" * 100, bytes(9 << 20), b"\x91" * 10_000])
def test_a_damaged_file_is_written_anew(parsed, data):
    file = paths.cache_folder() / CACHE
    file.write_bytes(data)
    assert "demo-cpu" in recipe_loader.load_all_recipes()[0]
    assert parsed
    parsed.clear()
    recipe_loader.load_all_recipes()
    assert parsed == []
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("place", ["", CACHE])
def test_a_file_that_others_may_have_written_is_not_believed(parsed, place):
    target = paths.cache_folder() / place
    target.chmod(target.stat().st_mode | 0o002)
    recipe_loader.load_all_recipes()
    assert parsed


def test_a_link_is_not_followed(parsed):
    file = paths.cache_folder() / CACHE
    elsewhere = file.rename(file.with_name("elsewhere"))
    file.symlink_to(elsewhere)
    recipe_loader.load_all_recipes()
    assert parsed
    assert not file.is_symlink()


def test_what_another_program_wrote_is_not_believed(parsed):
    file = paths.cache_folder() / CACHE
    stored = recipe_cache._DECODER.decode(file.read_bytes())
    file.write_bytes(msgspec.msgpack.encode(msgspec.structs.replace(stored, program="0.0.0 other")))
    recipe_loader.load_all_recipes()
    assert parsed


def test_a_folder_that_takes_no_file_is_no_error(folders):
    paths.cache_folder().parent.mkdir(parents=True, exist_ok=True)
    paths.cache_folder().write_text("not a folder")
    assert "demo-cpu" in recipe_loader.load_all_recipes()[0]
