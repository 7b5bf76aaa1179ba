"""Which parsers a chat template and a tokenizer ask for. The templates are cut down to the forms that models write."""

import pytest

from dflash_tui.planning.derivation.checkpoint import read_checkpoint
from dflash_tui.planning.derivation.pair import SUBJECTS, choose_parser
from dflash_tui.planning.recipes import recipe_loader

NEWEST = [*recipe_loader.load_releases()][-1]
CHATML = "{{ '<|im_start|>assistant\\n' }}"
HERMES = """'<tool_call>\\n{"name": <function-name>, \\"arguments\\": <args>}\\n</tool_call>'"""
XML = "<tool_call>\n<function=example>\n<parameter=a>\n</parameter>\n</function>\n</tool_call>"
GLM = "<tool_call>{function-name}\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"
LLAMA = 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'
THINKS = "{% if enable_thinking is false %}<think>\\n\\n</think>{% endif %}"


def choose(template: str | None, tokens: set[str] | None = None, vllm: str = NEWEST) -> list[tuple[str, str]]:
    found = frozenset(tokens) if tokens is not None else None
    target = read_checkpoint("owner/target", {}, chat_template=template, tokens=found)
    return [choose_parser(flag, target, vllm) for flag in SUBJECTS]


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        (HERMES, "hermes", ""),
        (HERMES + THINKS, "hermes", "qwen3"),
        (XML + "<think>\\n", "qwen3_coder", ""),  # it only takes the thoughts of before away
        (XML + THINKS, "qwen3_coder", "qwen3"),
        (XML + THINKS + "truncate_history_thinking", "qwen3_coder", "nemotron_v3"),
        (GLM + THINKS, "glm45", "glm45"),
        (GLM.replace("\n", "") + THINKS, "glm47", "glm45"),
        (GLM + THINKS + "<assistant>", "poolside_v1", "poolside_v1"),
        (LLAMA, "llama3_json", ""),
        ("<|tool_call>call: <|channel>thought", "gemma4", "gemma4"),
        ("<|start|>assistant to=functions.x<|channel|>commentary <|channel|>analysis", "openai", "openai_gptoss"),
        ("<｜tool▁calls▁begin｜>{% if not thinking %}<｜Assistant｜><think>", "deepseek_v31", "deepseek_v3"),
        ("{{ '<｜Assistant｜><think>\\n' }}", "", "deepseek_r1"),
        (CHATML + "{{ '<|im_start|>assistant\\n<think>\\n' }}", "", "deepseek_r1"),
        ("<minimax:tool_call><think>", "minimax_m2", "minimax_m2"),
        ("<|tool_calls_section_begin|><think>", "kimi_k2", "kimi_k2"),
        ("[TOOL_CALLS][THINK]", "mistral", "mistral"),
        ("<TOOLCALL>", "", ""),  # Nemotron Nano V2: no parser of vLLM reads that
    ],
)
def test_parsers_follow_the_chat_template(template, tools, reasoning):
    assert [name for name, _ in choose(template)] == [tools, reasoning]


@pytest.mark.parametrize(
    ("template", "tokens", "why"),
    [
        (None, None, "not known"),
        (CHATML, None, "no tool calls"),
        ("<TOOLCALL>", None, "no known parser"),
        (LLAMA, {"<|im_start|>"}, "llama3_json needs <|python_tag|>"),
        ("[TOOL_CALLS]", set(), "mistral needs [TOOL_CALLS]"),
    ],
)
def test_plan_without_parser_gives_reason(template, tokens, why):
    name, reason = choose(template, tokens)[0]
    assert not name
    assert why in reason
