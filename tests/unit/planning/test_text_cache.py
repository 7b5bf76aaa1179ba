"""Recipes and patches that were read before: the same ones come back, and nothing that a stale or foreign file says."""

from collections.abc import Callable, Iterator

import msgspec
import pytest

from dflash_tui.common import paths, yaml_loader
from dflash_tui.planning import patch_file, releases, text_cache
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.recipes import recipe_checks, recipe_loader

CACHE = "recipes.msgpack"
Patches = tuple[list[Patch], dict[str, str]]


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


def test_what_another_program_wrote_is_not_believed(parsed):
    file = paths.cache_folder() / CACHE
    stored = msgspec.msgpack.decode(file.read_bytes())
    file.write_bytes(msgspec.msgpack.encode(stored | {"program": "0.0.0 other"}))
    recipe_loader.load_all_recipes()
    assert parsed


def test_a_folder_that_takes_no_file_is_no_error(folders):
    paths.cache_folder().parent.mkdir(parents=True, exist_ok=True)
    paths.cache_folder().write_text("not a folder")
    assert "demo-cpu" in recipe_loader.load_all_recipes()[0]


@pytest.fixture
def read_anew(folders, monkeypatch) -> Iterator[Callable[[], tuple[Patches, list[str]]]]:
    """Read all patches as a new process does; it returns them and the names of those that were read as YAML."""
    read, names = patch_file._read_text, list[str]()

    def note(path, text):
        names.append(path.stem)
        return read(path, text)

    monkeypatch.setattr(patch_file, "_read_text", note)

    def load() -> tuple[Patches, list[str]]:
        names.clear()
        patch_file._read.cache_clear()
        patch_file._load_cache.cache_clear()
        return patch_file.load_all_patches(), [*names]

    load()
    yield load
    patch_file._read.cache_clear()
    patch_file._load_cache.cache_clear()


def test_patches_come_back_as_they_were_read(read_anew):
    (usable, broken), as_yaml = read_anew()
    assert (as_yaml, broken) == ([], {})
    fresh = {name: patch_file._read_text(path, path.read_text()) for name, path in paths.list_patch_files().items()}
    assert {patch.name: patch for patch in usable} == {
        name: msgspec.structs.replace(patch, name=name) for name, patch in fresh.items()
    }


def test_a_patch_that_changed_is_read_again(read_anew):
    source = paths.bundled_folder("patches") / "cpu-fork.yaml"
    own = paths.user_patches_folder() / "mine.yaml"
    own.parent.mkdir(parents=True)
    for title in ("One", "Another"):
        text = source.read_text()
        own.write_text(text.replace("title: ", f"title: {title} ", 1))
        (usable, _), as_yaml = read_anew()
        assert as_yaml == ["mine"]
        assert next(patch for patch in usable if patch.name == "mine").title.startswith(title)
    assert read_anew()[1] == []


def test_a_patch_that_names_itself_otherwise_is_refused_though_its_text_is_known(read_anew):
    source = paths.bundled_folder("patches") / "cpu-fork.yaml"
    own = paths.user_patches_folder() / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(source.read_text() + "\nname: mine\n")
    assert read_anew()[0][1] == {}
    own.rename(own.with_name("yours.yaml"))
    (_, broken), as_yaml = read_anew()
    assert ([*broken], as_yaml) == (["yours"], [])


def test_a_patch_that_is_refused_for_a_secret_is_not_remembered(read_anew):
    own = paths.user_patches_folder() / "mine.yaml"
    own.parent.mkdir(parents=True)
    secret = "hf_" + "x4k9" * 8
    text = (paths.bundled_folder("patches") / "cpu-fork.yaml").read_text()
    own.write_text(f"{text}\nwithout_patch:\n  env: {{HF_TOKEN: {secret}}}\n  why: none\n")
    assert [*read_anew()[0][1]] == ["mine"]
    assert secret.encode() not in (paths.cache_folder() / "patches.msgpack").read_bytes()


def test_a_table_is_written_where_that_is_asked_for_alone(folders, monkeypatch):
    """A replay writes nothing into a home."""
    monkeypatch.setattr(text_cache, "_unsaved", [])
    table = paths.PACKAGE_ROOT / "releases.yaml"
    fresh = text_cache.load_table(table, releases._Table)
    assert not paths.cache_folder().exists()
    text_cache.save_tables()
    assert [file.name for file in paths.cache_folder().iterdir()] == ["releases.msgpack"]
    monkeypatch.setattr(yaml_loader, "convert_yaml", lambda *_: pytest.fail("it was read as YAML"))
    assert text_cache.load_table(table, releases._Table) == fresh
