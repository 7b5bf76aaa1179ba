"""What a class of machine changes of a derived pair: flags, variables and warnings, by the published commands. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.derivation.checkpoint import Checkpoint, Precision
from dflash_tui.planning.methods import Method

_GB10 = (Hardware.GB10,)
_SM_120 = (Hardware.GB10, Hardware.RTX_5090_LAPTOP, Hardware.RTX_5090)
_SM_90 = (Hardware.H100, Hardware.H200)
_FP8_CACHE = ("Qwen3_5", "Qwen4Exp", "NemotronH")
# Of the target: that of the drafter vLLM chooses, since not each backend drafts a block at once.
_FLASHINFER = {"kv-cache-dtype": "fp8", "attention-backend": "flashinfer"}
_NO_DEEP_GEMM = {"VLLM_USE_DEEP_GEMM": "0", "VLLM_MOE_USE_DEEP_GEMM": "0"}


class ClassRule(NamedTuple):
    """A change that a rule makes on some classes of machine."""

    classes: tuple[Hardware, ...]
    """The classes that it is for."""
    part: str
    """The part of a recipe's layer that it changes: flags, env, speculation or warnings."""
    values: dict[str, Any] | list[str]
    """What it adds to that part."""
    why: str
    """The rule."""


def find_class_rules(target: Checkpoint, drafter: Checkpoint | None, method: Method) -> list[ClassRule]:
    """Return what the classes of machines change of a pair; nothing for a class that no rule is about."""
    return list(_iterate_rules(target, drafter, method))


def _iterate_rules(target: Checkpoint, drafter: Checkpoint | None, method: Method) -> Iterator[ClassRule]:
    if target.architecture.startswith(_FP8_CACHE):
        why = f"the published commands of {target.architecture} for a GB10"
        yield ClassRule(_GB10, "flags", _FLASHINFER, why)
    if target.precision is Precision.NVFP4:
        if target.experts:
            yield ClassRule(_GB10, "flags", {"moe-backend": "marlin"}, "NVFP4 experts on a GB10, as NVIDIA publishes")
            if method is Method.MTP and drafter is None:
                yield ClassRule(_GB10, "speculation", {"moe_backend": "triton"}, "the experts of an MTP head there")
        says = "NVFP4 runs as W4A16 on an H100 or H200, with 16-bit arithmetic; FP8 is native there."
        yield ClassRule(_SM_90, "warnings", [says], "sm_90 has no FP4 arithmetic")
    if target.precision is Precision.FP8_BLOCKS and not target.architecture.startswith("Qwen3_5"):
        yield ClassRule(_SM_120, "env", _NO_DEEP_GEMM, "FP8 in blocks on sm_12x (vllm#51884, #54125)")


def build_layers(rules: list[ClassRule]) -> dict[str, dict[str, Any]]:
    """Return the `hardware` part of a recipe that these rules make, by class and part of its layer."""
    layers: dict[str, dict[str, Any]] = {}
    for rule in rules:
        for hardware in rule.classes:
            layer = layers.setdefault(hardware.value, {})
            if isinstance(rule.values, list):
                layer[rule.part] = [*layer.get(rule.part, []), *rule.values]
            else:
                layer[rule.part] = layer.get(rule.part, {}) | rule.values
    return layers
