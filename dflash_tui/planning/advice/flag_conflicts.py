"""Flags of `vllm serve` that vLLM takes one by one and refuses together, in every release of the table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dflash_tui.planning.flag_values import read_whole_number

_BATCHED, _LENGTH, _SEQUENCES = "max-num-batched-tokens", "max-model-len", "max-num-seqs"
_UNCHUNKED = "no-enable-chunked-prefill"


def find_conflicts(flags: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a sentence for each two values that vLLM refuses together, by `SchedulerConfig.verify_max_model_len`.

    Args:
        flags: The words of each flag, by its whole name without dashes.
    """
    values = {name: " ".join(words) for name, words in flags.items()}
    batched, length, sequences = (read_whole_number(values, name) for name in (_BATCHED, _LENGTH, _SEQUENCES))
    if batched is None:
        return
    if _UNCHUNKED in flags and length is not None and batched < length:
        yield (
            f"--{_UNCHUNKED} with --{_BATCHED} {batched}, less than --{_LENGTH} {length}: vLLM refuses it; raise "
            f"{_BATCHED} to {length}, lower {_LENGTH}, or leave chunked prefill on"
        )
    if sequences is not None and batched < sequences:
        yield f"--{_BATCHED} {batched} is less than --{_SEQUENCES} {sequences}: raise it to {sequences} or more"
