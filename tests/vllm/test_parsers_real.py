"""The parsers of a real vLLM, made with a tokenizer that has none of their tokens."""

import json
import subprocess
from pathlib import Path

import pytest

from dflash_tui.planning.derivation.pair import _load_forms

pytestmark = [pytest.mark.vllm, pytest.mark.long]

SMOLLM2 = Path(__file__).parents[1] / "data/smollm2"
MAKE_PARSERS = """
import json, sys
from transformers import AutoTokenizer
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

tokenizer, refusals = AutoTokenizer.from_pretrained(sys.argv[1]), {}
for flag, manager, find in (
    ("tool-call-parser", ToolParserManager, ToolParserManager.get_tool_parser),
    ("reasoning-parser", ReasoningParserManager, ReasoningParserManager.get_reasoning_parser),
):
    refusals[flag] = []
    for name in manager.list_registered():
        try:
            find(name)(tokenizer)
        except (KeyError, RuntimeError, ValueError):
            refusals[flag].append(name)
print(json.dumps(refusals))
"""


def test_vllm_refuses_parsers_whose_tokens_are_missing(demo_engine):
    made = subprocess.run(
        [demo_engine.python, "-c", MAKE_PARSERS, SMOLLM2], check=True, capture_output=True, text=True, cwd="/"
    )
    for flag, refused in json.loads(made.stdout.splitlines()[-1]).items():
        needed = {form.parser for form in _load_forms()[flag] if form.tokens}
        assert needed
        assert needed <= set(refused)
