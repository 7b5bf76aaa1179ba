"""Results of another benchmark, read for comparison: the JSON of `vllm bench serve`.

A file of `vllm bench serve --append-result` holds several results, one after the other. An A/B is exported so, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dflash_tui.common.errors import UsageError
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.untrusted_json import decode_untyped, register_type
from dflash_tui.readings import Amount, Whole

SIZE_LIMIT = 64 << 20  # with --save-detailed every gap between two chunks is in it
# However many were appended to a file, no more are read.
_MOST_RESULTS = 10_000
_OURS = "dflash-tui "
_Count = Annotated[int, Meta(ge=0, le=1 << 40)]


class ImportedMeasurement(msgspec.Struct, frozen=True):
    """One measurement: `what` names it, `n` is of how many requests.

    `streams` requests were under way at a time (None: not said), or they arrived at `rate` per second. `tok_s` are
    output tokens per second of all of them together, as its `source` defines them; `ttft` is the median in seconds,
    `acceptance` a share of 1, `acceptance_length` counts the bonus token. None is what the file does not give.
    """

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
    """The result file of a benchmark: its tool, the model and its measurements.

    `synthetic` is why they say nothing about a real model, or empty.
    """

    source: str
    model: str
    measured: tuple[ImportedMeasurement, ...]
    synthetic: str = ""


class _Serve(msgspec.Struct):
    """`vllm bench serve --save-result`; acceptance is in percent, times are milliseconds."""

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
    """Return what the file says.

    Raises:
        UsageError: it cannot be read, is no JSON, or is no result of that tool.
    """
    try:
        if not path.is_file():
            raise UsageError(f"{path} is not a file")
        if path.stat().st_size > SIZE_LIMIT:
            raise UsageError(f"{path} is larger than {SIZE_LIMIT >> 20} MiB, which no benchmark result is")
        content = _decode(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read", evidence=clean_line(str(error))) from None
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise UsageError(f"{path} is not JSON", evidence=clean_line(str(error))) from None
    return _parse_result(path, content)


def _decode(data: bytes) -> Any:
    """Return what a file of JSON holds; of several lines of JSON a list.

    Raises:
        msgspec.MsgspecError: it is no JSON.
    """
    try:
        return decode_untyped(data)
    except msgspec.MsgspecError:
        if len(lines := data.split(b"\n", _MOST_RESULTS)) > _MOST_RESULTS:
            raise
        appended = decode_untyped(b"[%b]" % b",".join(line for line in lines if line.startswith(b"{")))
        if len(appended) < 2 or len(appended) < sum(bool(line.strip()) for line in lines):
            raise
        return appended


def _parse_result(path: Path, content: Any) -> ImportedResult:
    appended = content if isinstance(content, list) else [content]
    keys = appended[0] if appended and isinstance(appended[0], dict) else {}
    try:
        if "output_throughput" in keys:
            result = _parse_vllm_bench([msgspec.convert(record, _Serve) for record in appended])
        else:
            do = "give the JSON of `vllm bench serve --save-result`"
            raise UsageError(f"{path} is not a known benchmark result", hint=do)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} is not a valid benchmark result", evidence=clean_line(str(error))) from None
    if not result.measured:
        raise UsageError(f"{path} holds no measurement", evidence=f"{result.source} wrote none: did its requests fail?")
    return result


def _parse_vllm_bench(results: Sequence[_Serve]) -> ImportedResult:
    label = results[0].label or ""
    source = f"{_clean_name(label)}, as vllm bench serve writes it" if label.startswith(_OURS) else "vllm bench serve"
    measured = tuple(_read_measurement(result) for result in results if result.completed)
    synthetic = "; ".join(dict.fromkeys(_clean_name(result.synthetic) for result in results if result.synthetic))
    return ImportedResult(source, _clean_name(results[0].model_id), measured, synthetic)


def _read_measurement(result: _Serve) -> ImportedMeasurement:
    of = f"{result.arm}, boot {result.boot}" if result.arm and result.boot else result.arm
    return ImportedMeasurement(
        what=_clean_name(of) or "all requests",
        n=result.completed,
        streams=result.max_concurrency,
        rate=result.request_rate if isinstance(result.request_rate, float) else None,
        tok_s=result.output_throughput,
        ttft=_seconds(result.median_ttft_ms),
        tpot=_seconds(result.median_tpot_ms),
        acceptance=None if (rate := result.spec_decode_acceptance_rate) is None else rate / 100,
        acceptance_length=result.spec_decode_acceptance_length,
        failed=result.failed,
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _clean_name(text: str) -> str:
    return clean_line(text)[:200]
