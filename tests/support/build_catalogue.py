"""The shipped catalogue of pairs, made from a study in YAML: facts, each with its source, and what is unconfirmed.

`python -m tests.support.build_catalogue STUDY.yaml` writes `dflash_tui/catalogue.json`. Commands, arithmetic and
whatever else can be derived is left out; so is prose that is no condition of a figure.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from dflash_tui.planning.derivation import catalogue

Mapping = dict[str, Any]
_TARGET = ("architecture", "licence", "gated", "context", "note")
_FIGURE = ("hardware", "what", "source", "date", "vllm", "n", "temperature", "note")
# What a figure's note says of an engine that is no release of vLLM.
_OTHER_ENGINE = re.compile(r"SGLang|llama\.cpp|fork of vLLM|fork")


def build_catalogue(study: Mapping) -> Mapping:
    """Return the catalogue that a study makes."""
    targets = {name: _build_target(target) for name, target in study["targets"].items()}
    pairs = [_build_pair(pair) for pair in study["pairs"]]
    used = {each["source"] for target in targets.values() for each in target["variants"]}
    used |= {figure["source"] for pair in pairs for figure in pair.get("figures", ())}
    used |= {source for pair in pairs for source in pair.get("sources", ())}
    sources = {name: text for name, text in study["sources"].items() if name in used}
    return {"written": study["about"]["written"], "sources": sources, "targets": targets, "pairs": pairs}


def _build_target(target: Mapping) -> Mapping:
    fields = _pick(target, _TARGET)
    if fields.get("licence") == "not confirmed":
        del fields["licence"]
    fields |= {"kv_gib": target["kv_gib_at_32k_bf16"]} if target["kv_gib_at_32k_bf16"] else {}
    variants = [_pick(each, ("repo", "precision", "size_gb", "source")) for each in target["variants"]]
    return fields | {"variants": variants}


def _build_pair(pair: Mapping) -> Mapping:
    fields = _pick(pair, ("id", "target", "method", "drafter"))
    renamed = {"tokens": "n_published", "most_tokens": "n_most", "oldest_why": "oldest_why"}
    renamed |= {"drafter_gib": "drafter_kv_gib_32k"}
    fields |= {new: pair[old] for new, old in renamed.items() if pair.get(old) is not None}
    if not isinstance(fields.get("most_tokens"), int):
        fields.pop("most_tokens", None)
    if re.fullmatch(r"\d+\.\d+\.\d+", pair["oldest_vllm"]):
        fields["oldest_vllm"] = pair["oldest_vllm"]
    fields |= _pick(pair, ("drafter_arch", "drafter_size_gb", "drafter_gated", "drafter_licence", "rank"))
    if not isinstance(fields.get("drafter_gated", False), bool):
        del fields["drafter_gated"]
    fields |= {"figures": [_build_figure(each) for each in pair["figures"]]} if pair.get("figures") else {}
    return fields | _pick(pair, ("variants", "bugs", "sources", "unconfirmed"))


def _build_figure(figure: Mapping) -> Mapping:
    value, fields, note = figure["value"], _pick(figure, _FIGURE), figure.get("note") or ""
    fields |= {"engine": other[0]} if (other := _OTHER_ENGINE.search(note)) else {}
    fields |= {"n": 0} if note.startswith("without speculation") else {}
    if isinstance(value, str):
        return fields | {"note": "; ".join([value, *filter(None, [note])])}
    return fields | {"values": value if isinstance(value, list) else [value]}


def _pick(mapping: Mapping, names: tuple[str, ...]) -> Mapping:
    return {name: mapping[name] for name in names if mapping.get(name) not in (None, "", [])}


if __name__ == "__main__":
    made = build_catalogue(yaml.safe_load(Path(sys.argv[1]).read_text()))
    catalogue.SHIPPED.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
