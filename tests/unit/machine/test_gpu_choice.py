"""Which GPUs are used when somebody names some, or none."""

from typing import Any

import pytest

from dflash_tui.common.errors import UsageError
from dflash_tui.machine.gpus import Gpu, choose_gpus, filter_visible_gpus
from dflash_tui.machine.hardware import Hardware

GIB = 1 << 30


def card(index: int, hardware: Hardware = Hardware.H200, used: int = 0, **more: Any) -> Gpu:
    kept: dict[str, Any] = {"uuid": f"GPU-{index}0-x", "memory_total": 140 * GIB, "memory_used": used * GIB}
    return Gpu(index, hardware=hardware, **(kept | more))


MIXED = (
    card(0, Hardware.RTX_5090),
    card(1, used=9),
    card(2, used=3),
    card(3, used=5),
    card(4, trouble="GPU is lost: reboot"),
)


@pytest.mark.parametrize(
    ("wanted", "count", "words"),
    [
        (None, 4, "needed: 4, found of one class: 3"),
        ("h100", 1, "needed: 1, found as 'h100': 0"),
        ("1,2", 1, "needed: 1, found as '1,2': 2"),
        ("1,1", 2, "needed: 2, found as '1,1': 1"),
        ("7", 1, "there is no GPU called '7'"),
        ("4", 1, "GPU 4 cannot be used"),
    ],
)
def test_impossible_choices_are_refused(wanted, count, words):
    """The error says what there is."""
    with pytest.raises(UsageError) as error:
        choose_gpus(MIXED, wanted, count)
    assert words in error.value.what
    assert "2 (h200, GPU-20-x)" in error.value.hint


def test_nothing_to_choose_from():
    """Without a GPU the error says where to look."""
    with pytest.raises(UsageError, match="found of one class: 0") as error:
        choose_gpus((), None)
    assert "dflash-tui gpus" in error.value.hint
    twins = (card(0, uuid="GPU-aa1"), card(1, uuid="GPU-aa2"))
    with pytest.raises(UsageError, match=r"^2 GPUs have .*'GPU-aa'"):
        choose_gpus(twins, "GPU-aa")


def test_cuda_visible_devices_is_kept():
    """NVML shows every GPU, whatever CUDA_VISIBLE_DEVICES says."""
    first, second = Gpu(0, uuid="GPU-aaaa"), Gpu(1, uuid="GPU-bbbb")
    assert filter_visible_gpus((first, second), None) == (first, second)
    assert filter_visible_gpus((first, second), "1") == (second,)
    assert filter_visible_gpus((first, second), "GPU-bb,0") == (second, first)
    assert filter_visible_gpus((first, second), "") == ()
    assert filter_visible_gpus((first, second), "7") == ()
