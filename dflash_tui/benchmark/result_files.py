"""Write and read the result files of `vllm bench serve`.

A figure that was not measured is left out; docs/numbers.md says how other tools define the same words.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from dflash_tui import __version__
from dflash_tui.benchmark.summary import Percentiles, busy_seconds
from dflash_tui.common import private_files
from dflash_tui.common.errors import UsageError
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import Amount, RequestDone, Whole

_MILLISECONDS = 1000.0
SIZE_LIMIT = 64 << 20  # --save-detailed adds every gap between two chunks
_NAME = 200
_OURS = "dflash-tui "
_Count = Annotated[int, Meta(ge=0, le=1 << 40)]


class Measured(NamedTuple):
    """The measured requests of a server; `output_tok_s` is of a single level, uncounted requests included."""

    identity: str
    model: str
    began: float
    requests: tuple[RequestDone, ...]
    output_tok_s: float | None = None
    metadata: Mapping[str, str] = {}


def build_vllm_bench(measured: Measured) -> dict[str, Any]:
    """Return the last level as `vllm bench serve --save-result` writes it; times are in milliseconds."""
    last = max(measured.requests, key=lambda request: request.at)
    streams, rate = last.streams, last.rate  # at a rate, no streams are set
    done = [request for request in measured.requests if (request.streams, request.rate) == (streams, rate)]
    good, seconds = [request for request in done if not request.error], busy_seconds(done)
    read, generated = sum(r.prompt_tokens for r in good), sum(r.tokens for r in good)
    result = {
        "date": time.strftime("%Y%m%d-%H%M%S", time.gmtime(measured.began)),
        "endpoint_type": "openai-chat",
        "backend": "openai-chat",
        "label": f"dflash-tui {__version__}",
        "model_id": measured.model,
        "tokenizer_id": measured.model,
        "num_prompts": len(done),
        "request_rate": "inf" if streams else rate or None,
        "burstiness": 1.0,
        "max_concurrency": streams or None,
        "duration": seconds,
        "completed": len(good),
        "failed": len(done) - len(good),
        "total_input_tokens": read,
        "total_output_tokens": generated,
        "request_throughput": _rate(len(good), seconds),
        "output_throughput": _rate(generated, seconds) if measured.output_tok_s is None else measured.output_tok_s,
        "total_token_throughput": _rate(read + generated, seconds),
    }
    milliseconds = {
        "ttft": [r.ttft * _MILLISECONDS for r in good if r.ttft is not None],
        "tpot": [_MILLISECONDS / r.decode_tok_s for r in good if r.decode_tok_s],
        "e2el": [r.total * _MILLISECONDS for r in good],
    }
    for name, values in milliseconds.items():
        if cuts := Percentiles.from_values(values):
            figures = {"mean": statistics.fmean(values), "median": cuts.p50, "std": statistics.pstdev(values)}
            figures |= {"p50": cuts.p50, "p90": cuts.p90, "p95": cuts.p95, "p99": cuts.p99}
            result |= {f"{figure}_{name}_ms": value for figure, value in figures.items()}
    metadata = {name: value for name, value in measured.metadata.items() if name not in result}
    return result | _count_drafts(good) | metadata


def _count_drafts(good: Iterable[RequestDone]) -> dict[str, Any]:
    """Return the speculation fields, with vLLM's acceptance length; none unless each request has its steps."""
    drafts = [(r.steps, r.accepted) for r in good]
    steps, accepted = sum(s or 0.0 for s, _ in drafts), sum(a or 0.0 for _, a in drafts)
    if not steps or any(s is None or a is None for s, a in drafts):
        return {}
    return {
        "spec_decode_num_drafts": round(steps),
        "spec_decode_accepted_tokens": round(accepted),
        "spec_decode_acceptance_length": 1 + accepted / steps,
    }


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else 0.0


class ImportedMeasurement(msgspec.Struct, frozen=True):
    """One measurement of `n` requests: total `tok_s`, median `ttft` and `tpot`; None if not in the file."""

    what: str
    n: Whole
    streams: Whole | None = None
    tok_s: Amount | None = None
    ttft: Amount | None = None
    tpot: Amount | None = None
    acceptance: Amount | None = None
    acceptance_length: Amount | None = None
    failed: Whole = 0
    rate: Amount | None = None


class ImportedResult(msgspec.Struct, frozen=True):
    """A benchmark's result file; `synthetic` says why it says nothing about a real model, or is empty."""

    source: str
    model: str
    measured: tuple[ImportedMeasurement, ...]
    synthetic: str = ""


class _Serve(msgspec.Struct):
    """A result of `vllm bench serve --save-result`; acceptance is in percent, times are in milliseconds."""

    completed: _Count
    output_throughput: Amount
    model_id: str = ""
    failed: _Count = 0
    max_concurrency: _Count | None = None
    request_rate: Amount | str | None = None
    label: str | None = None
    arm: str = ""
    boot: str = ""
    synthetic: str = ""
    median_ttft_ms: Amount | None = None
    median_tpot_ms: Amount | None = None
    spec_decode_acceptance_rate: Annotated[float, Meta(ge=0, le=100)] | None = None
    spec_decode_acceptance_length: Amount | None = None


register_type(_Serve)


def load_imported_result(path: Path) -> ImportedResult:
    """Return the results in a file of `vllm bench serve`; raise UsageError if it has none or is invalid."""
    try:
        content = _decode(private_files.read_file(path, SIZE_LIMIT))
    except OSError as error:
        raise UsageError(f"{path} cannot be read", evidence=error.strerror or str(error)) from None
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise UsageError(f"{path} is not JSON", evidence=str(error)) from None
    appended = content if isinstance(content, list) else [content]
    if not appended or not isinstance(appended[0], dict) or "output_throughput" not in appended[0]:
        do = "give the JSON of `vllm bench serve --save-result`"
        raise UsageError(f"{path} is not a known benchmark result", hint=do)
    try:
        results = [msgspec.convert(record, _Serve) for record in appended]
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} is not a valid benchmark result", evidence=str(error)) from None
    label = results[0].label or ""
    source = f"{label[:_NAME]}, as vllm bench serve writes it" if label.startswith(_OURS) else "vllm bench serve"
    measured = tuple(_read_measurement(result) for result in results if result.completed)
    if not measured:
        raise UsageError(f"{path} holds no measurement", evidence=f"{source} recorded none: did its requests fail?")
    synthetic = "; ".join(dict.fromkeys(result.synthetic[:_NAME] for result in results if result.synthetic))
    return ImportedResult(source, results[0].model_id[:_NAME], measured, synthetic)


def _decode(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.MsgspecError:
        lines = [line for line in data.split(b"\n") if line.strip()]
        if len(lines) < 2:
            raise
        return [msgspec.json.decode(line) for line in lines]


def _read_measurement(result: _Serve) -> ImportedMeasurement:
    of = f"{result.arm}, boot {result.boot}" if result.arm and result.boot else result.arm
    rate, ttft, tpot = result.spec_decode_acceptance_rate, result.median_ttft_ms, result.median_tpot_ms
    return ImportedMeasurement(
        what=of[:_NAME] or "all requests",
        n=result.completed,
        streams=result.max_concurrency,
        rate=result.request_rate if isinstance(result.request_rate, float) else None,
        tok_s=result.output_throughput,
        ttft=None if ttft is None else ttft / _MILLISECONDS,
        tpot=None if tpot is None else tpot / _MILLISECONDS,
        acceptance=None if rate is None else rate / 100,
        acceptance_length=result.spec_decode_acceptance_length,
        failed=result.failed,
    )
