"""What we write is for its owner alone, and what others could have written is not believed."""

import os
import resource
import stat
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui.benchmark import suites
from dflash_tui.cli import main
from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import DflashError, RecipeError, UsageError
from dflash_tui.experiments import store
from dflash_tui.planning import patch_file
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.runs import lifecycle, registry, server_process
from tests.support import escapes, hostile_home
from tests.support.experiment_factories import a_design, a_plan
from tests.support.odd_files import ODD_FILES


@pytest.fixture(params=[0o000, 0o022, 0o027])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_runs_and_experiments_are_private_whatever_the_umask(umask):
    """Folders 0700, files 0600: those of a launch with its log, and those of an experiment."""
    plan = replace(a_plan(), argv=(sys.executable, "-c", "print(1)"))
    run = lifecycle.launch_server(plan, engine="none")
    server_process.read_exit_code(run)
    store.append_event(store.create_experiment(a_design()), run.launched)
    root = paths.runs_folder().parent
    modes = {path.relative_to(root): stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}
    assert {path.name for path in modes} >= {
        "runs",
        run.id,
        "run.json",
        "server.log",
        "experiment.json",
        "events.jsonl",
    }
    for path, mode in modes.items():
        assert mode == (0o700 if (root / path).is_dir() else 0o600), path


@pytest.mark.parametrize(
    ("place", "mode", "words"),
    [
        (".", 0o770, "by its group"),
        ("run.json", 0o666, "by everybody"),
        ("run.json", 0o660, "by its group"),
        ("..", 0o777, "by everybody"),
        ("../..", 0o777, "by everybody"),
    ],
)
def test_a_run_is_believed_only_if_its_file_and_what_is_above_it_are_ours(tmp_path, capsys, place, mode, words):
    """Who can write a folder above can put another run in its place; nobody but us has a reason to write one."""
    hostile_home.made("x", tmp_path)
    assert [run.id for run in registry.list_runs()] == [hostile_home.RUN]
    changed = (paths.runs_folder() / hostile_home.RUN / place).resolve()
    changed.chmod(mode)
    assert registry.list_runs() == []
    with pytest.raises(UsageError) as caught:
        registry.find_run(hostile_home.RUN)
    assert words in str(caught.value)
    assert f"go-w {changed}" in caught.value.hint
    assert main.main(["ps"]) == 0
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "mode", "refused"),
    [
        ("mine.yaml", 0o666, True),
        (".", 0o777, True),
        ("..", 0o777, True),
        ("mine.yaml", 0o664, False),
        (".", 0o775, False),
    ],
)
@pytest.mark.parametrize("kind", ["recipes", "patches"])
def test_own_recipes_and_patches_that_all_may_write_are_named_and_not_used(capsys, kind, place, mode, refused):
    """A group may share them. The others are listed all the same."""
    folder = paths.config_folder() / kind
    folder.mkdir(parents=True)
    name = {"recipes": "demo-cpu", "patches": "cpu-expand-kernel"}[kind]
    (folder / "mine.yaml").write_text((paths.bundled_folder(kind) / f"{name}.yaml").read_text())
    changed = (folder / place).resolve()
    changed.chmod(mode)
    if kind == "recipes":
        code = main.main(["recipes", "check"])
        said = capsys.readouterr().out
        assert code == (2 if refused else 0)
        assert "demo-cpu" in said
    else:
        usable, unusable = patch_file.load_all_patches()
        said = " ".join(unusable.values())
        assert ("mine" in unusable) is refused
        assert name in {patch.name for patch in usable}
    assert ("by everybody" in said) is refused
    assert (f"go-w {changed}" in said) is refused


@pytest.mark.parametrize(
    ("place", "mode", "refused"),
    [("mine.yaml", 0o666, True), (".", 0o777, True), (".", 0o1777, False), ("mine.yaml", 0o664, False)],
)
def test_a_recipe_by_its_path_that_all_may_write_is_named_and_not_used(tmp_path, capsys, place, mode, refused):
    """In a folder such as /tmp, where nobody replaces files of others, it is used; so is one of another user."""
    folder = tmp_path / "shared"
    folder.mkdir()
    file = folder / "mine.yaml"
    file.write_text((paths.bundled_folder("recipes") / "demo-cpu.yaml").read_text())
    changed = (folder / place).resolve()
    changed.chmod(mode)
    if os.geteuid() == 0:
        os.chown(file, 12345, -1)
    for words in (["plan"], ["recipes", "check"]):
        assert main.main([*words, str(file)]) == (2 if refused else 0)
        output = capsys.readouterr()
        assert (f"ignoring {file}: it " in output.out + output.err) is refused
        assert (f"go-w {changed}" in output.out + output.err) is refused


@pytest.mark.parametrize("way", ["own/deep/mine.yaml", "own/link.yaml", "own/chain.yaml", "own/folder/mine.yaml"])
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_recipe_that_everybody_can_replace_is_not_used(tmp_path, capsys, way, mode):
    """In whatever folder above it, and over whatever links: one of them names another file tomorrow."""
    recipe = (paths.bundled_folder("recipes") / "demo-cpu.yaml").read_text()
    (tmp_path / "own" / "deep").mkdir(parents=True)
    (tmp_path / "open" / "deep").mkdir(parents=True)
    for place in ("own/deep", "open/deep"):
        (tmp_path / place / "mine.yaml").write_text(recipe)
    (tmp_path / "open" / "link.yaml").symlink_to(tmp_path / "own" / "deep" / "mine.yaml")
    (tmp_path / "own" / "link.yaml").symlink_to("../open/deep/mine.yaml")
    (tmp_path / "own" / "chain.yaml").symlink_to(tmp_path / "open" / "link.yaml")
    (tmp_path / "own" / "folder").symlink_to("../open/deep")
    (tmp_path / ("own" if "deep" in way else "open")).chmod(mode)
    assert main.main(["plan", str(tmp_path / way)]) == (2 if mode == 0o777 else 0)
    assert ("ignoring" in capsys.readouterr().err) is (mode == 0o777)


def test_an_own_recipe_that_links_to_what_everybody_can_replace_is_not_used(tmp_path, capsys):
    """Also where the path to it begins in this program's own folder."""
    shared = tmp_path / "open"
    shared.mkdir()
    (shared / "mine.yaml").write_text((paths.bundled_folder("recipes") / "demo-cpu.yaml").read_text())
    folder = paths.user_recipes_folder()
    folder.mkdir(parents=True)
    (folder / "mine.yaml").symlink_to(shared / "mine.yaml")
    assert main.main(["recipes", "check", "mine"]) == 0
    shared.chmod(0o777)
    up = Path(os.path.relpath(shared / "mine.yaml", paths.PACKAGE_ROOT))
    for words in (["recipes", "check", "mine"], ["plan", f"{paths.PACKAGE_ROOT}/{up}"]):
        assert main.main(words) == 2
        output = capsys.readouterr()
        assert "everybody" in output.out + output.err


def test_nobody_is_told_to_change_the_mode_of_a_device(capsys):
    """A recipe that is a link to one is no file; `chmod` would follow the link."""
    folder = paths.user_recipes_folder()
    folder.mkdir(parents=True)
    (folder / "mine.yaml").symlink_to("/dev/zero")
    assert main.main(["recipes", "check", "mine"]) == 2
    assert "chmod" not in capsys.readouterr().out


def test_questions_of_the_user_that_all_may_write_are_not_used():
    """As the recipes; a file of lines is no YAML, and is asked about all the same."""
    file = paths.user_suites_folder() / "mt-bench.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"question_id": 1, "category": "a", "turns": ["Why?"]}')
    assert suites.load_suite("mt-bench").prompts
    file.chmod(0o666)
    with pytest.raises(RecipeError, match="by everybody"):
        suites.load_suite("mt-bench")


def test_a_recipe_that_the_system_gives_a_user_is_used(monkeypatch):
    """Some systems keep configurations as links into a folder of root's."""
    folder = paths.user_recipes_folder()
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text((paths.bundled_folder("recipes") / "demo-cpu.yaml").read_text())
    real = (folder / "mine.yaml").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    if real:
        with pytest.raises(RecipeError, match="belongs to another user"):
            recipe_loader.find_recipe("mine")
    else:
        assert recipe_loader.find_recipe("mine").name == "mine"


def test_a_folder_that_all_may_write_is_refused_in_words(tmp_path, capsys, snapshot):
    """No run is launched into it, and no pid in it is believed."""
    hostile_home.made("x", tmp_path)
    (paths.runs_folder() / hostile_home.RUN).chmod(0o777)
    (paths.experiments_folder() / hostile_home.AB).chmod(0o777)
    assert registry.list_runs() == []
    assert store.list_experiments() == []
    with pytest.raises(UsageError) as caught:
        registry.find_run(hostile_home.RUN)
    assert main.main(["ps"]) == 0
    state = str(paths.runs_folder().parent)
    assert [text.replace(state, "STATE") for text in (str(caught.value), capsys.readouterr().err)] == snapshot
    paths.runs_folder().chmod(0o777)
    with pytest.raises(DflashError, match="nothing was launched"):
        lifecycle.launch_server(a_plan(), engine="none")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused_in_words(tmp_path):
    hostile_home.made("x", tmp_path)
    os.chown(paths.runs_folder() / hostile_home.RUN, 12345, -1)
    assert registry.list_runs() == []
    with pytest.raises(UsageError, match=r"belongs to another user \(uid 12345\)"):
        registry.find_run(hostile_home.RUN)


def test_a_state_folder_that_everybody_can_replace_is_refused_in_words(tmp_path):
    """The folder itself is private; what leads to it is a link in a folder of everybody."""
    hostile_home.made("x", tmp_path)
    state = paths.state_folder()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    state.rename(tmp_path / "shared" / "state")
    state.symlink_to(tmp_path / "shared" / "state")
    assert registry.list_runs() == []
    with pytest.raises(UsageError, match=f"reached through {tmp_path / 'shared'}") as refused:
        registry.find_run(hostile_home.RUN)
    assert refused.value.hint.endswith(f"go-w {tmp_path / 'shared'}")
    (tmp_path / "shared").chmod(0o755)
    assert [run.id for run in registry.list_runs()] == [hostile_home.RUN]


def test_who_owns_a_folder_is_asked_of_the_system(tmp_path, monkeypatch):
    """The same without being root."""
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert "belongs to another user" in private_files.ownership_problem(tmp_path)
    assert private_files.ownership_problem(tmp_path / "gone") == ""


@pytest.mark.parametrize("identity", ["../../../precious", "..", "another"])
def test_an_experiment_cannot_name_another_folder(identity, tmp_path):
    """By its id a folder is written to and removed: one that says another is none."""
    folder = store.create_experiment(a_design())
    (folder / "experiment.json").write_bytes(msgspec.json.encode(a_design(id=identity)))
    assert store.list_experiments() == []
    with pytest.raises(UsageError):
        store.find_experiment(identity)


def test_a_name_of_a_run_cannot_climb():
    """Names open nothing but what stands in the list of runs."""
    for name in ("../x", "/etc", "..", escapes.all_of_them()[:200]):
        with pytest.raises(UsageError):
            registry.find_run(name)


@pytest.mark.parametrize("kind", ODD_FILES)
@pytest.mark.timeout(60)
def test_what_is_no_file_is_neither_read_nor_written(tmp_path, kind):
    """None is opened, so that nothing is waited for; only whoever follows links gets what a link leads to."""
    path = tmp_path / "file"
    ODD_FILES[kind](path)
    with pytest.raises(OSError, match="not a file"):
        private_files.read_file(path, 1 << 20)
    with pytest.raises(OSError, match="not a file"):
        private_files.append_line(path, b"x")
    if kind == "link to a file":
        assert private_files.read_file(path, 1 << 20, follow=True) == path.read_bytes()
        return
    with pytest.raises(OSError, match=r"not a file|No such file"):
        private_files.read_file(path, 1 << 20, follow=True)


def test_no_more_than_the_limit_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert private_files.read_file(tmp_path / "file", 100) == b"x" * 100
    with pytest.raises(OSError, match="larger than"):
        private_files.read_file(tmp_path / "file", 99)


@pytest.mark.parametrize("room", range(0, 40, 3))
def test_after_a_full_disk_the_first_line_is_a_line_of_its_own(tmp_path, room):
    """However much of a line the disk had room for, no line after it is lost; the torn one is."""
    path = tmp_path / "samples.jsonl"
    lines = [b'{"at": %d, "text": "some text"}' % number for number in range(4)]
    private_files.append_line(path, lines[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        if room < len(lines[1]) + 1:
            with pytest.raises(OSError, match="File too large"):
                private_files.append_line(path, lines[1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    private_files.append_line(path, lines[2])
    private_files.append_line(path, lines[3])
    torn = lines[1][:room] if 0 < room <= len(lines[1]) else None
    assert path.read_bytes().splitlines() == [line for line in (lines[0], torn, *lines[2:]) if line is not None]
