"""Which of some drafters is that of the target's own precision, by their names."""

import pytest

from dflash_tui.planning.derivation.checkpoint import arrange_by_precision

LAGUNA = "poolside/Laguna-XS-2.1"
DRAFTERS = ["z/other-DFlash", f"{LAGUNA}-DFlash", f"{LAGUNA}-DFlash-FP8", "z/last-FP8", f"{LAGUNA}-DFlash-NVFP4",
            f"{LAGUNA}-DFlash-INT4"]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "own"),
    [
        (f"{LAGUNA}-FP8", "-FP8"),
        (f"{LAGUNA}-NVFP4", "-NVFP4"),
        (f"somebody/{LAGUNA}-quantized.w4a16", "-INT4"),
        (f"/models/{LAGUNA}-AWQ-4bit/", "-INT4"),
        (LAGUNA, ""),
        (f"{LAGUNA}-BF16", ""),
    ],
)
def test_drafter_with_target_precision_precedes_its_kind(target, own):
    """Where the first of them stood, the others in their order; what has no kind stays where it is."""
    arranged = arrange_by_precision(DRAFTERS, target, str)
    names = [name for name, _ in arranged]
    first = f"{LAGUNA}-DFlash{own}"
    assert (names[0], names[1], names[-1]) == (DRAFTERS[0], first, "z/last-FP8")
    assert names[2:5] == [name for name in DRAFTERS if name.startswith(LAGUNA) and name != first]
    assert [name for name, is_own in arranged if is_own] == [first]
