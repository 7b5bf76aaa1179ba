"""What prometheus_client sees in a line of /metrics, to hold our own parser to it."""

import math

from prometheus_client.parser import text_string_to_metric_families

from dflash_tui.vllm_output.metrics import Sample, parse_sample

_ESCAPES = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}


def parse_with_prometheus(line: str) -> Sample | None:
    """Return the sample in a line as prometheus_client reads it; None for none, or an error."""
    try:
        samples = [sample for family in text_string_to_metric_families(line) for sample in family.samples]
        return Sample(samples[0].name, samples[0].labels, float(samples[0].value)) if len(samples) == 1 else None
    except (ValueError, OverflowError, IndexError):
        return None


def parse(line: str) -> Sample | None:
    """Return what we read in a line, with the escapes of its labels resolved."""
    sample = parse_sample(line)
    labels = {name: _unescape(value) for name, value in sample.labels.items()} if sample else {}
    return sample._replace(labels=labels) if sample else None


def assert_agreement(line: str) -> None:
    """Assert that two parsers which both see a sample see the same one."""
    ours, theirs = parse(line), parse_with_prometheus(line)
    if ours and theirs:
        same_value = ours.value == theirs.value or (math.isnan(ours.value) and math.isnan(theirs.value))
        assert (ours.name, ours.labels, same_value) == (theirs.name, theirs.labels, True), line


def _unescape(value: str) -> str:
    text, at = "", 0
    while at < len(value):
        pair = value[at : at + 2]
        text += _ESCAPES.get(pair, value[at])
        at += 2 if pair in _ESCAPES else 1
    return text
