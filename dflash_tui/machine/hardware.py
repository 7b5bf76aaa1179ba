"""Hardware classes: classify a GPU, and the typical machine of a class. Pure."""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

_GIB = 1 << 30
_MIB = 1 << 20


class Hardware(StrEnum):
    """The class of a machine, by which recipes differ: a known machine, or else a GPU architecture."""

    GB10 = "gb10"
    RTX_5090_LAPTOP = "rtx-5090-laptop"
    RTX_5090 = "rtx-5090"
    RTX_PRO_6000 = "rtx-pro-6000"
    RTX_4090 = "rtx-4090"
    RTX_3090 = "rtx-3090"
    H100 = "h100"
    H200 = "h200"
    B200 = "b200"
    BLACKWELL = "blackwell"
    HOPPER = "hopper"
    ADA = "ada"
    AMPERE = "ampere"
    OLDER = "older"
    CPU = "cpu"
    UNKNOWN = "unknown"


# Compute capability 12.0 and 12.1; and all with FP4 arithmetic, 10.0 and above.
SM_12X = frozenset({Hardware.GB10, Hardware.RTX_5090_LAPTOP, Hardware.RTX_5090, Hardware.RTX_PRO_6000})
WITH_FP4 = SM_12X | {Hardware.B200, Hardware.BLACKWELL}


class TypicalMachine(msgspec.Struct, frozen=True):
    """A typical machine of a class: memory in bytes as the driver reports it, and the CPU architecture.

    `bandwidth` is that of its GPU memory in bytes per second: published, or of a copy if `bandwidth_measured`.
    """

    capability: str
    memory_total: int
    architecture: str
    bandwidth: float
    unified: bool = False
    bandwidth_measured: bool = False


# Totals as nvidia-smi prints them; for the GB10, whose driver reports none, MemTotal of a DGX Spark.
# GB10: leptonai/gpud pull request 1170 (2025-12); later systems have up to 121.7 GiB, so this is the smaller.
# RTX 5090: noonghunna/club-3090 issue 1261. H100: modal-labs/modal-client pull request 2797 (the 80 GB card; PCIe and
# NVL cards differ). H200 and RTX 5090 Laptop: nvidia-smi with drivers 580 and 590.
# Bandwidths: NVIDIA's data sheets (H100: the SXM card), but for the H200, which copied 4.25 TB/s of its published 4.8.
# RTX PRO 6000: vllm-project/vllm issue 27542. RTX 4090: issue 7553 there. RTX 3090: noonghunna/club-3090 issue 747.
TYPICAL: dict[Hardware, TypicalMachine] = {
    Hardware.GB10: TypicalMachine("12.1", 128_501_256_192, "aarch64", 273e9, unified=True),
    Hardware.RTX_5090_LAPTOP: TypicalMachine("12.0", 24_463 * _MIB, "x86_64", 896e9),
    Hardware.RTX_5090: TypicalMachine("12.0", 32_607 * _MIB, "x86_64", 1792e9),
    Hardware.RTX_PRO_6000: TypicalMachine("12.0", 97_887 * _MIB, "x86_64", 1792e9),
    Hardware.RTX_4090: TypicalMachine("8.9", 24_564 * _MIB, "x86_64", 1008e9),
    Hardware.RTX_3090: TypicalMachine("8.6", 24_576 * _MIB, "x86_64", 936e9),
    Hardware.H100: TypicalMachine("9.0", 81_559 * _MIB, "x86_64", 3350e9),
    Hardware.H200: TypicalMachine("9.0", 143_771 * _MIB, "x86_64", 4250e9, bandwidth_measured=True),
}

# The first match wins: compute capability, pattern in the name, class.
_CLASSES = (
    (r"12\.1", "", Hardware.GB10),
    (r"12\.0", r"5090.*\bLaptop\b", Hardware.RTX_5090_LAPTOP),
    (r"12\.0", "5090", Hardware.RTX_5090),
    (r"12\.0", r"\bRTX PRO 6000\b", Hardware.RTX_PRO_6000),
    (r"10\.\d+", r"\bG?B200\b", Hardware.B200),
    (r"1[0-2]\.\d+", "", Hardware.BLACKWELL),
    # A GH200 is not an H200: its memory and CPU differ.
    (r"9\.0", r"\bH100\b", Hardware.H100),
    (r"9\.0", r"\bH200\b", Hardware.H200),
    (r"9\.\d+", "", Hardware.HOPPER),
    (r"8\.9", r"\b4090\b(?!.*\bLaptop\b)", Hardware.RTX_4090),
    (r"8\.9", "", Hardware.ADA),
    (r"8\.6", r"\b3090\b", Hardware.RTX_3090),
    (r"8\.\d+", "", Hardware.AMPERE),
    (r"[1-7]\.\d+", "", Hardware.OLDER),
)


# For the class of a desktop GPU: its least memory, and the class of a GPU with less.
_LAPTOPS = {
    Hardware.RTX_5090: (28 * _GIB, Hardware.RTX_5090_LAPTOP),
    Hardware.RTX_4090: (20 * _GIB, Hardware.ADA),
}
# Common names of each class, without the vendor and with - between words.
_USUAL_NAMES = {
    Hardware.GB10: "spark dgx-spark sm121 sm-121",
    Hardware.RTX_5090_LAPTOP: "5090-laptop 5090-mobile rtx-5090-mobile 5090m rtx-5090m rtx-5090-laptop-gpu",
    Hardware.RTX_5090: "5090 5090-desktop rtx-5090-desktop",
    Hardware.H100: "h100-sxm h100-sxm5 h100-pcie h100-nvl h100-80gb",
    Hardware.H200: "h200-sxm h200-nvl h200-141gb",
    Hardware.B200: "b200-sxm gb200",
    Hardware.RTX_PRO_6000: "rtx-pro-6000-blackwell rtx-6000-pro pro-6000 rtx-pro-6000-max-q",
    Hardware.RTX_4090: "4090 4090-d rtx-4090-d",
    Hardware.RTX_3090: "3090 3090-ti rtx-3090-ti",
    Hardware.BLACKWELL: "5080 rtx-5080 5070-ti rtx-5070-ti 5070 rtx-5070",
    Hardware.ADA: "4080 rtx-4080 l4 l40 l40s rtx-6000-ada",
    Hardware.AMPERE: "a100 a40 a10 a6000 rtx-a6000",
}
_CLASS_BY_NAME = {name: kind for kind, names in _USUAL_NAMES.items() for name in names.split()}


def parse_class(name: str) -> Hardware | None:
    """Return the class with the common name `name`, in any spelling (`H100`, `5090`, `DGX Spark`); else None."""
    plain = re.sub(r"[\s_-]+", "-", name.strip().lower())
    plain = re.sub(r"^(?:nvidia-|geforce-)+", "", plain)
    plain = re.sub(r"^rtx-?(?=\d)", "rtx-", plain)
    return Hardware(plain) if plain in set(Hardware) else _CLASS_BY_NAME.get(plain)


def classify_gpu(name: str, capability: str, memory_total: int | None) -> Hardware:
    """Return the class of a GPU by its name, compute capability ("12.0") and bytes of memory; UNKNOWN if none fits.

    Names may be cut ("NVIDIA GeForce RTX 5090 ...") and differ between drivers, and recipes are sized by memory. So a
    "5090" or "4090" with the memory of the laptop's GPU (24 or 16 GB) counts as that one, whatever its name.
    """
    for its_capability, words, kind in _CLASSES:
        if re.fullmatch(its_capability, capability) and re.search(words, name, re.IGNORECASE):
            least, laptop = _LAPTOPS.get(kind, (0, kind))
            return laptop if memory_total is not None and 0 < memory_total < least else kind
    return Hardware.UNKNOWN
