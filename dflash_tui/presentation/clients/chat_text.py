"""Text of a conversation with a server: its commands, the line under an answer, and tool calls. Pure."""

from __future__ import annotations

import math

from dflash_tui.benchmark.chat import Conversation, ToolCall, Turn
from dflash_tui.common.formatting import format_number, pluralize
from dflash_tui.events import RequestDone
from dflash_tui.presentation.clients.client_wiring import describe_boot
from dflash_tui.runs.run import Run

# A request's own steps make its tokens, but for the first one and what the last step cuts off; more are of others.
_OWN_SHARE, _OWN_TOKENS = 0.1, 16


_HELP = """\
/clear           clear the conversation
/system TEXT     set the system prompt; without TEXT remove it
/temperature T   of the sampling, 0 to 2; the model's own without T
/quit            leave; a line that begins with a blank is not a command"""


def obey_command(conversation: Conversation, line: str) -> str | None:
    """Do what a line that begins with / says; return what there is to say of it, or None to leave."""
    name, _, words = line[1:].partition(" ")
    words = words.strip()
    if name in {"quit", "exit"}:
        return None
    if name == "clear":
        conversation.clear()
        return "conversation cleared"
    if name == "system":
        conversation.system = words
        return "system prompt set" if words else "system prompt removed"
    if name == "temperature":
        return _set_temperature(conversation, words)
    return _HELP if name in {"help", "?"} else f"no command /{name}\n{_HELP}"


def _set_temperature(conversation: Conversation, words: str) -> str:
    try:
        number = float(words) if words else None
    except ValueError:
        number = math.nan
    if number is not None and not 0 <= number <= 2:
        return f"/temperature: expected a number from 0 to 2, not '{words}'"
    conversation.temperature = number
    return f"temperature: {words or 'the model’s own'}"


def list_cautions(run: Run) -> list[str]:
    """Return what whoever talks with a server has to know before its first answer, a sentence each; mostly nothing."""
    boot, synthetic = describe_boot(run), run.plan.synthetic
    return [
        *([f"! {boot}"] if boot else []),
        *([f"({synthetic}: answers and figures say nothing about a real model)"] if synthetic else []),
    ]


def format_turn(turn: Turn) -> str:
    """Return the measures of an answer in a line; what is not known is left out."""
    done = turn.request
    parts = [f"{pluralize(done.tokens, 'token')} in {done.total:.1f} s"]
    parts += [f"{done.decode_tok_s:.1f} tok/s"] if done.decode_tok_s else []
    parts += [f"first after {format_number(done.ttft, 2, 's')}"] if done.ttft is not None else []
    length = find_acceptance_length(done)
    parts += [f"AL {length:.2f}"] if length is not None else []
    parts += [f"ended by {done.finish}"] if done.finish not in {"", "stop", "tool_calls"} else []
    return " · ".join(parts)


def find_acceptance_length(done: RequestDone) -> float | None:
    """Return the acceptance length of a request alone; None where the counters have the steps of others as well."""
    if done.steps is None or done.accepted is None:
        return None
    others = abs(done.steps + done.accepted - done.tokens)
    return done.acceptance_length if others <= max(_OWN_TOKENS, _OWN_SHARE * done.tokens) else None


def format_tool_call(call: ToolCall) -> str:
    """Return a tool call as one would write it."""
    return f"{call.name}({call.arguments})"
