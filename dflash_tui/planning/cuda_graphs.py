"""Graphs mode: CUDA graphs of whole decode steps without torch.compile; and vLLM's V2 runner in any mode. Pure.

What each release captures, with which attention backend, is read from the sources of vLLM 0.20.0 to 0.33.0
(v1/worker/gpu_model_runner.py, v1/worker/gpu, v1/cudagraph_dispatcher.py, v1/attention/backends).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace
from packaging.version import Version

from dflash_tui.common.errors import UsageError
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import kv_cache
from dflash_tui.planning.field_types import FlagValue
from dflash_tui.planning.methods import WITHOUT_DRAFTER
from dflash_tui.planning.recipes.recipe import HardwareLayer, Mode, ModelConfig
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.serve_flags import normalize_flag_names, read_whole_number

# Concurrent requests of the measurements; each number of requests has its own graph.
DEFAULT_SEQUENCES = 8
# Up to here each number of requests has a graph; above it every eighth, and others are padded.
_EACH_CAPTURED = 16
_STEP = 8
# Four times vLLM's own limit on the largest GPU.
_MOST_CAPTURED = 4096
_CONFIG = "compilation-config"
# Without a named mode, releases before 0.30 run eagerly without a message.
_OWN_KEYS: dict[str, Any] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
# What graphs mode may set instead of `--enforce-eager`: flags and variables.
OPTIONS = (f"--{_CONFIG}", "--max-num-seqs", "--gpu-memory-utilization", RUNNER)
_FIRST_WITH_V2, _ALWAYS_V2 = Version("0.24.0"), Version("0.29.0")
_V2_FOR_HYBRIDS = Version("0.26.0")
# Before 0.29 the V2 runner does not count the graphs when it sizes the KV cache (vllm#49233).
_UTILIZATION_WITH_MARGIN = 0.92
# Twice this many bytes of logits fit beside the KV cache of any GPU with 24 GB or more.
_LOGITS, _LOGIT = 1 << 29, 2
_LARGEST_VOCABULARY = 262_144
# vLLM's own limit of requests on a GPU below 70 GiB.
_MOST_LEFT_TO_VLLM = 256
# The first release whose FlashInfer verifies drafts within a graph; before it the whole server runs eagerly.
_FLASHINFER_SINCE = {
    Hardware.B200: Version("0.20.0"),
    Hardware.GB10: Version("0.28.0"),
    Hardware.RTX_5090: Version("0.28.0"),
    Hardware.RTX_5090_LAPTOP: Version("0.28.0"),
    Hardware.RTX_PRO_6000: Version("0.28.0"),
    Hardware.H100: Version("0.30.0"),
    Hardware.H200: Version("0.30.0"),
    Hardware.HOPPER: Version("0.30.0"),
}
_FLASHINFER_EVERYWHERE = Version("0.33.0")


def apply_graphs_mode(resolved: ResolvedRecipe, tokens: int) -> ResolvedRecipe:
    """Return a recipe with the flags, variables and warnings of graphs mode; `tokens` are drafted per step.

    Raise UsageError if the server would run eagerly, or a setting contradicts graphs mode.
    """
    if resolved.recipe.for_cpu:
        raise UsageError("graphs mode needs a GPU: a CPU has no CUDA graphs", hint="--mode eager")
    vllm = Version(resolved.engine.vllm)
    flags = normalize_flag_names(resolved.flags)
    if setting := find_flashinfer(resolved, flags):
        raise UsageError(
            f"graphs mode: FlashInfer of vLLM {resolved.engine.vllm} captures no verification on "
            f"{resolved.hardware.value}, and the server would run eagerly",
            hint=f"--set {setting}=triton_attn, or --vllm {find_flashinfer_release(resolved)}",
        )
    config, flags = _split_compilation_config(flags, resolved.changed)
    named = read_whole_number(flags, "max-num-seqs")
    sequences = named or DEFAULT_SEQUENCES
    limit = f"graphs mode serves {sequences} requests at once, others wait; --set max-num-seqs=N changes it"
    warnings = [] if named else [limit]
    sizes = config.get("cudagraph_capture_sizes") or _list_capture_sizes(flags, tokens + 1, sequences)
    config = {key: value for key, value in config.items() if key != "max_cudagraph_capture_size"}
    flags |= {"max-num-seqs": sequences, _CONFIG: config | _OWN_KEYS | {"cudagraph_capture_sizes": sizes}}
    env = dict(resolved.env)
    drafts = bool(tokens) and resolved.method not in WITHOUT_DRAFTER
    if drafts and vllm < _FIRST_WITH_V2:
        warnings.append(f"vLLM {resolved.engine.vllm} captures the target only: its drafter runs eagerly")
    if drafts and _needs_v2_runner(resolved, vllm):
        env.setdefault(RUNNER, "1")
    if env.get(RUNNER) == "1" and vllm < _ALWAYS_V2:
        warnings += _reserve_memory(flags)
    return replace(resolved, flags=flags, env=env, warnings=(*resolved.warnings, *warnings))


def apply_mode(resolved: ResolvedRecipe, mode: Mode, tokens: int) -> ResolvedRecipe:
    """Return a recipe with the changes of a mode, and with the requests limited for vLLM's V2 runner."""
    return apply_graphs_mode(resolved, tokens) if mode is Mode.GRAPHS else _limit_v2_requests(resolved, tokens)


def _limit_v2_requests(resolved: ResolvedRecipe, tokens: int) -> ResolvedRecipe:
    """Return a recipe with `max-num-seqs` set, if it chose the V2 runner without setting it.

    Before it serves, the V2 runner makes the logits of `tokens` drafts for every possible request, twice, and does not
    count them when it sizes the KV cache. 1,024 requests x 16 tokens x a vocabulary of 262,144 took 8 GiB each, and an
    H200 with vLLM 0.26.0 ran out of memory.
    """
    chosen = resolved.env.get(RUNNER) == "1" and can_choose_v2_runner(Version(resolved.engine.vllm))
    if not (chosen and tokens) or read_whole_number(normalize_flag_names(resolved.flags), "max-num-seqs"):
        return resolved
    words = (resolved.target.config.vocab_size if resolved.target.config else None) or _LARGEST_VOCABULARY
    fitting = _LOGITS // (words * (tokens + 1) * _LOGIT)
    sequences = max(DEFAULT_SEQUENCES, min(_MOST_LEFT_TO_VLLM, fitting // _STEP * _STEP))
    warning = (
        f"vLLM's V2 runner serves {sequences} requests at once, others wait: its warm-up verifies the drafts of all of "
        "them, without reserving memory for that; --set max-num-seqs=N changes the limit"
    )
    flags = {**resolved.flags, "max-num-seqs": sequences}
    return replace(resolved, flags=flags, warnings=(*resolved.warnings, warning))


def is_choice(resolved: ResolvedRecipe, mode: Mode, tokens: int) -> bool:
    """Whether a launch in another mode, with `tokens` drafts per step, could use graphs mode instead."""
    if resolved.recipe.for_cpu or mode is Mode.GRAPHS:
        return False
    try:
        apply_graphs_mode(resolved, tokens)
    except UsageError:
        return False
    return True


def is_measured(resolved: ResolvedRecipe) -> bool:
    """Whether the recipe has figures of graphs mode on this class of GPU."""
    return any(
        figures.mode is Mode.GRAPHS
        for figures in resolved.recipe.hardware.get(resolved.hardware, HardwareLayer()).expected
    )


def find_flashinfer_release(resolved: ResolvedRecipe) -> Version:
    """Return the first release whose FlashInfer verifies drafts within a whole graph on this class of GPU."""
    return _FLASHINFER_SINCE.get(resolved.hardware, _FLASHINFER_EVERYWHERE)


def find_flashinfer(resolved: ResolvedRecipe, flags: dict[str, FlagValue]) -> str:
    """Return the setting that chooses a FlashInfer without whole graphs of verification; empty if none does."""
    backends = {
        "attention-backend": flags.get("attention-backend"),
        "speculation.attention_backend": resolved.speculation.get("attention_backend"),
    }
    if Version(resolved.engine.vllm) >= find_flashinfer_release(resolved):
        return ""
    return next((setting for setting, backend in backends.items() if str(backend).upper() == "FLASHINFER"), "")


def _split_compilation_config(
    flags: dict[str, FlagValue], changed: Iterable[str]
) -> tuple[dict[str, Any], dict[str, FlagValue]]:
    config: dict[str, Any] = {}
    others: dict[str, FlagValue] = {}
    for name, value in flags.items():
        flag, _, key = name.partition(".")
        if flag != _CONFIG:
            others[name] = value
        elif key:
            config[key] = value
        elif isinstance(value, dict):
            config |= value
    by_hand = any(name.replace("_", "-").startswith(_CONFIG) for name in changed)
    for key, value in _OWN_KEYS.items():
        if by_hand and config.get(key, value) != value:
            raise UsageError(
                f"{_CONFIG}.{key} is {value} in graphs mode, and was set to {config[key]}",
                hint="--mode compile takes any compilation config",
            )
    return config, others


def _list_capture_sizes(flags: dict[str, FlagValue], verified: int, sequences: int) -> list[int]:
    """Return the batch sizes in tokens to capture, for steps that verify `verified` tokens per sequence."""
    counts = {
        count
        for count in range(1, min(sequences, _MOST_CAPTURED) + 1)
        if count <= _EACH_CAPTURED or count % _STEP == 0 or count == sequences
    }
    batched = read_whole_number(flags, "max-num-batched-tokens")
    most = batched if batched and batched >= verified else sequences * verified
    return [count * verified for count in sorted(counts) if count * verified <= most]


def is_hybrid(config: ModelConfig | None) -> bool:
    """Whether a model has linear attention or Mamba layers beside full attention, such as Qwen3.5 and Qwen3-Next."""
    return bool(config and (config.linear_num_value_heads or {"linear", "mamba"} & {*kv_cache.classify_layers(config)}))


def can_choose_v2_runner(vllm: Version) -> bool:
    """Whether a release has the V2 runner without using it by default."""
    return _FIRST_WITH_V2 <= vllm < _ALWAYS_V2


def _needs_v2_runner(resolved: ResolvedRecipe, vllm: Version) -> bool:
    """Whether this release's default runner may leave the drafter eager, and the V2 runner supports the model."""
    since = _V2_FOR_HYBRIDS if is_hybrid(resolved.target.config) else _FIRST_WITH_V2
    return since <= vllm < _ALWAYS_V2


def _reserve_memory(flags: dict[str, FlagValue]) -> list[str]:
    """Lower `gpu-memory-utilization` in `flags` if it leaves no margin for the graphs; return the warnings."""
    share = flags.get("gpu-memory-utilization")
    if not isinstance(share, float | int) or share <= _UTILIZATION_WITH_MARGIN:
        return []
    flags["gpu-memory-utilization"] = _UTILIZATION_WITH_MARGIN
    return [
        f"gpu-memory-utilization {share} -> {_UTILIZATION_WITH_MARGIN}: this runner does not count its graphs "
        "when it sizes the KV cache (vllm#49233)"
    ]
