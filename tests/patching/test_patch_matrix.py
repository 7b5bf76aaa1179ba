"""Every patch on every published release, read from the real wheels; the table in docs/patches.md is made of it.

`pytest tests/patching/test_patch_matrix.py --update-plans` writes the table anew. A release that is published tomorrow
is checked without a change here; the table ends with READ_SO_FAR.
"""

import itertools

import pytest
from packaging.version import Version

from dflash_tui.common import paths
from dflash_tui.engines.patching import text_edits
from dflash_tui.engines.patching.text_edits import EditFit
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch
from tests import ROOT
from tests.patching.arms import TRIED
from tests.support import wheels

DOCS = ROOT / "docs" / "patches.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
PATCHES = {name: patch_file.load_patch(name) for name in sorted(paths.list_patch_files())}
READ_SO_FAR = Version("0.33.0")  # later releases are looked at, and may differ
Sources = dict[wheels.Release, wheels.Texts]


@pytest.fixture(scope="module")
def sources(releases) -> Sources:
    """The files that patches change or look at, of each release of each distribution."""

    def of(project: str) -> set[str]:
        patches = [patch for patch in PATCHES.values() if patch.distribution == project]
        return {path for p in patches for path in (*p.paths, *(mark.path for mark in p.fingerprints))}

    return wheels.read_all({release: of(release[0]) for release in releases})


def covered(patch: Patch, version: str) -> bool:
    return patch_file.covers_build(patch, patch_file.describe_build(patch.distribution, version))


def cell(patch: Patch, version: str, texts: dict[str, str | None]) -> str:
    """What the table says of a patch and a release."""
    if not covered(patch, version):
        build = patch_file.describe_build(patch.distribution, version)
        elsewhere = "key" if patch_file.find_keys_instead(patch, build) else "·"
        return "upstream" if text_edits.matches_fingerprint(patch.upstream, texts) else elsewhere
    if text_edits.fit_edits(patch, texts) is not EditFit.ABSENT or text_edits.matches_fingerprint(
        patch.upstream, texts
    ):
        return "**does not fit**"
    kinds = {patch.experimental: "experiment", bool(patch.instead_of): "alternative", patch.cuda: f"CUDA {patch.cuda}"}
    return next((kind for asked, kind in kinds.items() if asked), "needed")


def row(patch: Patch, sources: Sources) -> str:
    """What each release of its package needs of a patch, releases that need the same together."""
    cells = [
        (version, cell(patch, version, texts))
        for (of, version), texts in sources.items()
        if of == patch.distribution and Version(version) <= READ_SO_FAR
    ]
    spans = []
    for said, group in itertools.groupby(cells, key=lambda pair: pair[1]):
        first, *_, last = [version for version, _ in group] * 2
        spans += [] if said == "·" else [f"{said} {first}" + f" to {last}" * (first != last)]
    return f"| `{patch.name}` | {patch.distribution} | {', '.join(spans)} |"


@pytest.mark.index
@pytest.mark.parametrize("name", PATCHES)
def test_patch_fits_every_release_it_covers(name, sources):
    """Each edit matches exactly once, the result compiles, and taking it back gives the published bytes."""
    patch, tried = PATCHES[name], []
    for (project, version), texts in sources.items():
        if project != patch.distribution or not covered(patch, version):
            continue
        if Version(version) > READ_SO_FAR and text_edits.fit_edits(patch, texts) is EditFit.DRIFTED:
            continue  # a later release may have moved on: its row says so
        assert text_edits.fit_edits(patch, texts) is EditFit.ABSENT, version
        assert text_edits.describe_drift(patch, texts) == ""
        after = text_edits.patch_texts([patch], texts)
        assert text_edits.fit_edits(patch, {**texts, **after}) is EditFit.PRESENT, version
        for file in patch.files:
            back = after[file.path]
            for edit in reversed(file.edits):
                back = back.replace(edit.new, edit.old)
            assert back == texts[file.path], version
        tried.append(version)
    print(f"{name}: {', '.join(tried)}")
    assert tried


@pytest.mark.index
@pytest.mark.parametrize("name", [name for name, patch in PATCHES.items() if patch.upstream])
def test_upstream_has_fix_since_release_in_file(name, sources):
    """Seen in the source: never in a release before, in each one after; a patched source shows it, too."""
    patch = PATCHES[name]
    assert patch.upstream
    seen = {
        version: text_edits.matches_fingerprint(patch.upstream, texts)
        for (of, version), texts in sources.items()
        if of == patch.distribution
    }
    since = Version(patch.upstream.since) if patch.upstream.since else None
    for version, there in seen.items():
        if since is None and Version(version) > READ_SO_FAR:
            continue  # it may have come
        assert there is (since is not None and Version(version) >= since), version
        assert not (there and covered(patch, version)), version


@pytest.mark.index
@pytest.mark.parametrize("name", [name for name, patch in PATCHES.items() if patch.by_others])
def test_no_release_looks_patched_by_others(name, sources):
    """As published none has that form where the patch is for it."""
    patch = PATCHES[name]
    for (of, version), texts in sources.items():
        if of == patch.distribution and covered(patch, version) and Version(version) <= READ_SO_FAR:
            assert not all(text_edits.matches_fingerprint(sign, texts) for sign in patch.by_others), version


@pytest.mark.index
@pytest.mark.parametrize("name", PATCHES)
def test_patch_effects_are_tested_at_range_ends(name, releases):
    """The tests of effects execute the first and the last release that a patch is for."""
    patch = PATCHES[name]
    mine = [version for project, version in releases if project == patch.distribution and covered(patch, version)]
    read = [version for version in mine if Version(version) <= READ_SO_FAR]
    assert (read[0], read[-1]) == (TRIED[name].releases[0], TRIED[name].releases[-1])


@pytest.mark.index
def test_patches_of_one_release_commute(sources):
    """Whatever is applied first, the text is the same: an engine may get them recipe by recipe."""
    shared = 0
    for (project, version), texts in sources.items():
        here = [p for p in PATCHES.values() if p.distribution == project and covered(p, version)]
        absent = [p for p in here if text_edits.fit_edits(p, texts) is EditFit.ABSENT]
        for one, other in itertools.combinations(absent, 2):
            both = set(one.paths) & set(other.paths)
            mine = {path: text for path, text in texts.items() if path in {*one.paths, *other.paths}}
            if both:  # what they do to files of their own has no order
                assert text_edits.patch_texts([one, other], mine) == text_edits.patch_texts([other, one], mine), (
                    version,
                    one.name,
                )
            shared += bool(both)
    assert shared


@pytest.mark.index
def test_the_table_in_the_docs_is_true(sources, pytestconfig):
    """Every row of it is what the wheels say."""
    table = "\n".join(
        ["| patch | of | releases |", "|---|---|---|", *(row(patch, sources) for patch in PATCHES.values())]
    )
    before, _, rest = DOCS.read_text().partition(BEGIN)
    documented, _, after = rest.partition(END)
    if pytestconfig.getoption("--update-plans"):
        DOCS.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
        return
    assert documented.strip() == table
