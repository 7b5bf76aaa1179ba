"""How a patch stands in real sources of published wheels: by whom it is in, and what counts more than the version."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.common.errors import PatchError
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import status
from dflash_tui.engines.patching.status import PatchState, PatchStatus
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Edit, FileEdits, Patch
from tests.patching.conftest import CPU_FILE, build, make
from tests.support import wheels

W8A8 = "model_executor/layers/quantization/utils/w8a8_utils.py"
TRITON = "v1/attention/backends/triton_attn.py"
DRAFTER = "model_executor/models/qwen3_dflash.py"
GPU = [patch for patch in map(patch_file.load_patch, sorted(paths.list_patch_files())) if patch.distribution == "vllm"]
NAMES = {
    "triton-non-causal",
    "dflash-draft-flash-attn",
    "gb10-cutlass-fp8",
    "qwen3-next-eagle3",
    "gemma4-draft-mm-prefix",
}
CUDA_12 = ("vllm==0.20.2+cu129",)


@pytest.fixture(scope="module")
def read() -> Mapping[str, Mapping[str, str]]:
    """The files that patches change or look at, of four releases."""
    wanted = {path for patch in GPU for path in (*patch.paths, *(mark.path for mark in patch.fingerprints))}
    with wheels.skip_if_unreachable():
        texts = wheels.read_all({("vllm", version): wanted for version in ("0.20.2", "0.22.0", "0.24.0", "0.33.0")})
    return {version: {path: text for path, text in texts.items() if text} for (_, version), texts in texts.items()}


def installed(folder: Path, texts: Mapping[str, str], version: str) -> Engine:
    """An environment with these sources, built for CUDA 12."""
    return replace(build(folder, texts, "vllm", version), packages=CUDA_12)


def stand(engine: Engine) -> dict[str, PatchStatus]:
    return {patch.name: status.find_patch_status(patch, engine) for patch in GPU if patch.name in NAMES}


def edit(engine: Engine, path: str, old: str, new: str) -> None:
    """Change a file by hand."""
    file = engine.site_packages / "vllm" / path
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def published_patcher(engine: Engine) -> None:
    """Do what the script does that came with the first Gemma 4 recipe for a GB10; it runs at every start."""
    for name in ("cutlass_fp8_supported", "cutlass_block_fp8_supported"):
        edit(engine, W8A8, f"def {name}() -> bool:\n", f"def {name}() -> bool:\n    return False  # on a Spark\n")
    attention = (engine.site_packages / "vllm" / DRAFTER).read_text()
    if "FlashAttentionBackend" in attention:
        return
    method = "    @classmethod\n    def supports_non_causal(cls) -> bool:\n        return True\n\n"
    before = "    @classmethod\n    def supports_head_size(cls, head_size: int) -> bool:\n"
    edit(engine, TRITON, before, method + before)
    line = "from vllm.v1.attention.backend import AttentionType\n"
    edit(engine, DRAFTER, line, line + "from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend\n")
    last = "            attn_type=attn_type,\n        )\n"
    edit(engine, DRAFTER, last, last.replace("        )", "            attn_backend=FlashAttentionBackend,\n        )"))


@pytest.mark.index
def test_published_patcher_edits_are_recognised(read, tmp_path):
    """In its own form, however often it ran: not by us, neither drifted nor applied once more."""
    engine = installed(tmp_path / "e", read["0.20.2"], "0.20.2")
    for _ in range(3):
        published_patcher(engine)
        found = stand(engine)
        theirs = {name for name, one in found.items() if one.state is PatchState.APPLIED_BY_OTHER}
        assert theirs == {"triton-non-causal", "dflash-draft-flash-attn", "gb10-cutlass-fp8"}
        assert all("not applied by dflash-tui" in found[name].why for name in theirs)
        names = [patch_file.load_patch(name) for name in sorted(theirs)]
        assert make(engine, *names).added == ()


@pytest.mark.index
def test_patch_in_one_of_two_functions_drifts(read, tmp_path):
    """Ours in the one and theirs in the other is not in; it is shown what stands there."""
    engine = installed(tmp_path / "e", read["0.20.2"], "0.20.2")
    edit(
        engine,
        W8A8,
        "def cutlass_fp8_supported() -> bool:\n",
        "def cutlass_fp8_supported() -> bool:\n    return False\n",
    )
    found = stand(engine)["gb10-cutlass-fp8"]
    assert found.state is PatchState.DRIFTED
    assert "found 0 times: def cutlass_fp8_supported" in found.drift
    old = patch_file.load_patch("gb10-cutlass-fp8").files[0].edits[1]
    edit(engine, W8A8, old.old, old.new)
    assert "\n1 of its 2 edits " in stand(engine)["gb10-cutlass-fp8"].drift


@pytest.mark.index
@pytest.mark.parametrize(
    ("source", "version", "expected"),
    [
        ("0.20.2", "0.19.2rc1.dev21", {"triton-non-causal", "dflash-draft-flash-attn", "qwen3-next-eagle3"}),
        ("0.20.2", "0.24.0rc1", {"triton-non-causal", "dflash-draft-flash-attn", "qwen3-next-eagle3"}),
        ("0.24.0", "0.23.1rc1.dev99", set()),
    ],
)
def test_a_nightly_is_judged_by_its_source(read, tmp_path, source, version, expected):
    """Whatever its number says: what it has is upstream, what it lacks is needed; and that it was judged so."""
    found = stand(installed(tmp_path / "e", read[source], version))
    needed = {name for name, one in found.items() if one.state is PatchState.NEEDED}
    assert needed == expected | {"gb10-cutlass-fp8"}
    others = {one.state for name, one in found.items() if name not in needed}
    assert others <= {PatchState.UPSTREAM, PatchState.NOT_APPLICABLE}
    assert all(f"{version} is not a release" in one.why for one in found.values())


def test_fix_written_differently_upstream_is_upstream(tmp_path, pristine, shipped, snapshot):
    """The next release of the CPU build may expand by itself; while the very text stands there, it does not."""
    [edit] = shipped.files[0].edits
    theirs = pristine.replace(edit.old, "    output.copy_(torch.repeat_interleave(input_val, cu_num_tokens))\n")
    found = status.find_patch_status(shipped, build(tmp_path / "e", {CPU_FILE: theirs}, version="0.33.0"))
    assert found.state is PatchState.UPSTREAM
    elsewhere = pristine + "\n\ndef expand(values, lengths):\n    return torch.repeat_interleave(values, lengths)\n"
    for version in ("0.32.0", "0.33.0"):
        engine = build(tmp_path / version, {CPU_FILE: elsewhere}, version=version)
        assert status.find_patch_status(shipped, engine).state is PatchState.NEEDED
        assert make(engine, shipped).added == (shipped.name,)
    found = status.find_patch_status(shipped, build(tmp_path / "f", {CPU_FILE: pristine}, version="0.33.0"))
    assert (found.state, found.why) == (PatchState.NEEDED, snapshot)


def on_other(patch: Patch, *edits: Edit) -> Patch:
    made: Patch = replace(patch, name="other", files=(FileEdits("utils/other.py", edits),), upstream=None)
    return made


def test_the_same_change_by_other_hands(engine, shipped, snapshot):
    """Others write no comment that names us; one of two edits alone is neither in nor out, and is said so."""
    one = Edit("x = 1\n", "x = 1\ny = 1  # dflash-tui: other\n")
    other = on_other(shipped, one, Edit("z = 1\n", "# dflash-tui: other\nz = 2\n"))
    text = engine.site_packages / "vllm" / "utils/other.py"
    text.write_text("x = 1\ny = 1\nz = 2\n")
    assert status.find_patch_status(other, engine).state is PatchState.APPLIED_BY_OTHER
    text.write_text("x = 1\ny = 1\nz = 1\n")
    found = status.find_patch_status(other, engine)
    assert (found.state, found.drift) == (PatchState.DRIFTED, snapshot)


def test_patch_put_in_place_by_earlier_releases(engine, shipped):
    patched = make(engine, shipped).engine
    by_hand = replace(patched, patch_digests={}, edited={})
    found = status.find_patch_status(shipped, by_hand)
    assert (found.state, "not applied by dflash-tui" in found.why) == (PatchState.APPLIED_BY_OTHER, True)
    Path(patched.folder, "dflash-patches.json").write_text("[]")
    assert "by an earlier dflash-tui" in status.find_patch_status(shipped, by_hand).why


def test_no_path_leads_out(engine):
    for path in ("/etc/passwd", "../../../../pyvenv.cfg", "utils/../../x.py"):
        with pytest.raises(PatchError, match="leads out"):
            status.resolve_vllm_file(engine, path)
