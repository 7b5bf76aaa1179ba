"""Which class a GPU is."""

import pytest

from dflash_tui.machine.hardware import TYPICAL, Hardware, classify_gpu, parse_class

GIB = 1 << 30


@pytest.mark.parametrize(
    ("name", "capability", "gib", "expected"),
    [
        ("NVIDIA GB10", "12.1", None, Hardware.GB10),
        ("Graphics Device", "12.1", 120, Hardware.GB10),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", "12.0", 23.9, Hardware.RTX_5090_LAPTOP),
        ("NVIDIA GeForce RTX 5090", "12.0", 31.8, Hardware.RTX_5090),
        ("NVIDIA GeForce RTX 5090 D", "12.0", 31.8, Hardware.RTX_5090),
        ("NVIDIA GeForce RTX 5090 ...", "12.0", 23.9, Hardware.RTX_5090_LAPTOP),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "12.0", 95.6, Hardware.RTX_PRO_6000),
        ("NVIDIA B200", "10.0", 178, Hardware.B200),
        ("NVIDIA B300 SXM6 AC", "10.3", 268, Hardware.BLACKWELL),
        ("NVIDIA H100 80GB HBM3", "9.0", 79.6, Hardware.H100),
        ("NVIDIA H200 NVL", "9.0", 140, Hardware.H200),
        ("NVIDIA GH200 480GB", "9.0", 95, Hardware.HOPPER),
        ("NVIDIA L40S", "8.9", 44, Hardware.ADA),
        ("NVIDIA GeForce RTX 4090", "8.9", 24, Hardware.RTX_4090),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "8.9", 16, Hardware.ADA),
        ("NVIDIA GeForce RTX 4090 ...", "8.9", 16, Hardware.ADA),
        ("NVIDIA GeForce RTX 3090", "8.6", 24, Hardware.RTX_3090),
        ("NVIDIA RTX A6000", "8.6", 48, Hardware.AMPERE),
        ("Tesla T4", "7.5", 15, Hardware.OLDER),
        ("", "", None, Hardware.UNKNOWN),
        ("NVIDIA R100", "14.0", 280, Hardware.UNKNOWN),
    ],
)
def test_a_gpu_has_a_class(name, capability, gib, expected):
    """Capability first, then words in the name; memory tells a laptop's 5090 whose name was cut short."""
    assert classify_gpu(name, capability, None if gib is None else int(gib * GIB)) is expected


@pytest.mark.parametrize("kind", TYPICAL)
def test_typical_values_match_their_gpu_class(kind):
    """The table for planning agrees with the table for telling."""
    typical = TYPICAL[kind]
    name = kind.value.upper().replace("-", " ")
    assert classify_gpu(name, typical.capability, typical.memory_total) is kind
    assert 20 * GIB < typical.memory_total < 145 * GIB


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 SXM", Hardware.H100),
        ("5090", Hardware.RTX_5090),
        ("GeForce RTX5090", Hardware.RTX_5090),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", Hardware.RTX_5090_LAPTOP),
        ("DGX Spark", Hardware.GB10),
        ("RTX 3090", Hardware.RTX_3090),
        ("RTX PRO 6000", Hardware.RTX_PRO_6000),
        ("CPU", Hardware.CPU),
        ("0", None),
        ("GPU-5090", None),
        ("h101", None),
    ],
)
def test_a_class_goes_by_its_usual_names(name, expected):
    """Indices and UUIDs are none of them."""
    assert parse_class(name) is expected
