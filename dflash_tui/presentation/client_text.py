"""How clients connect to a server, and the text of a chat with it. Pure.

The API key itself is never shown, only the variable that holds it.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dflash_tui.benchmark.chat import Conversation, ToolCall, Turn
from dflash_tui.common.formatting import format_number, format_synthetic, pluralize
from dflash_tui.events import RequestDone
from dflash_tui.runs.run import KEY_VARIABLE, Run

_PROVIDER = "dflash-tui"
_HELLO = "Say hello."
# Agents ask for this many tokens by default, which a shorter context rejects.
_LONGEST_ANSWER = 32_000


class ClientProgram(StrEnum):
    """A program or library that sends requests to a server."""

    OPENCODE = "opencode"
    CONTINUE = "continue"
    OPEN_WEBUI = "open-webui"
    CURL = "curl"
    PYTHON = "python"


class Endpoint(msgspec.Struct, frozen=True):
    """The address of a server and the model it serves."""

    url: str
    """The base URL of the OpenAI-compatible API."""
    model: str
    """The served model name."""
    key_variable: str = ""
    """The variable that holds the API key; empty if the server requires none."""
    context: int | None = None
    """The maximum tokens of prompt and answer together, if the launch sets it."""

    @classmethod
    def from_run(cls, run: Run) -> Endpoint:
        """Return the endpoint of the server of `run` for programs on this machine."""
        plan = run.plan
        key = KEY_VARIABLE if plan.is_open else ""
        return cls(f"{run.url}/v1", plan.served_name, key, plan.context)


def format_endpoint(endpoint: Endpoint) -> str:
    """Return the endpoint in one line."""
    return " · ".join([endpoint.url, *list_endpoint_facts(endpoint)])


def list_endpoint_facts(endpoint: Endpoint) -> list[str]:
    """Return the model name and the variable of the API key."""
    key = f"key in ${endpoint.key_variable}" if endpoint.key_variable else "no key"
    return [f"model {endpoint.model}", key]


def describe_boot(run: Run) -> str:
    """Return a notice that the server belongs to an A/B; empty for other servers."""
    if not run.experiment:
        return ""
    return f"{run.id} is a boot of the A/B or tune {run.experiment}, which soon stops it; requests disturb its figures"


def format_tunnel(endpoint: Endpoint, host: str) -> str:
    """Return the ssh tunnel command that makes `host`'s server reachable by the same URL."""
    address = urlsplit(endpoint.url)
    return f"ssh -N -L {address.port}:{address.netloc} {host}"


def describe_use(endpoint: Endpoint, host: str) -> str:
    """Return how programs use a server, as lines for below the commands that watch and stop it.

    `host` is the server's name as seen from the user's own machine; empty if that is this machine.
    """
    reach = f"  reach: {format_tunnel(endpoint, host)}\n" if host else ""
    return f"{reach}  use:   {format_endpoint(endpoint)}"


def format_wiring(endpoint: Endpoint, program: ClientProgram) -> str:
    """Return the configuration file or command that makes a program use a server."""
    return _FORMS[program](endpoint)


def _format_opencode(endpoint: Endpoint) -> str:
    """Return an opencode.json in the format of version 1, which version 2 reads too."""
    options = {"baseURL": endpoint.url}
    options |= {"apiKey": f"{{env:{endpoint.key_variable}}}"} if endpoint.key_variable else {}
    model: dict[str, Any] = {"name": endpoint.model}
    if endpoint.context:
        model["limit"] = {"context": endpoint.context, "output": min(_LONGEST_ANSWER, endpoint.context // 4)}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": _PROVIDER, "options": options}
    provider |= {"models": {endpoint.model: model}}
    config = {"$schema": "https://opencode.ai/config.json", "provider": {_PROVIDER: provider}}
    return json.dumps(config | {"model": f"{_PROVIDER}/{endpoint.model}"}, indent=2)


def _format_continue(endpoint: Endpoint) -> str:
    import yaml

    model: dict[str, Any] = {"name": endpoint.model, "provider": "vllm", "model": endpoint.model}
    model["apiBase"] = endpoint.url
    if endpoint.key_variable:
        model["apiKey"] = f"${{{{ secrets.{endpoint.key_variable} }}}}"
    model["roles"] = ["chat", "edit", "apply"]
    if endpoint.context:
        model["defaultCompletionOptions"] = {"contextLength": endpoint.context}
    config = {"name": _PROVIDER, "version": "0.0.1", "schema": "v1", "models": [model]}
    return yaml.safe_dump(config, sort_keys=False, width=1000, allow_unicode=True).rstrip()


def _format_open_webui(endpoint: Endpoint) -> str:
    key = f'OPENAI_API_KEY="${endpoint.key_variable}" ' if endpoint.key_variable else ""
    words = ["-d --network host --name open-webui -v open-webui:/app/backend/data", "-e PORT=3000"]
    words += [f"-e {shlex.quote(f'OPENAI_API_BASE_URL={endpoint.url}')}", *(["-e OPENAI_API_KEY"] if key else [])]
    return f"{key}docker run {_over_lines([*words, 'ghcr.io/open-webui/open-webui:main'])}"


def _format_curl(endpoint: Endpoint) -> str:
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": _HELLO}], "stream": True}
    words = [f"-N {shlex.quote(f'{endpoint.url}/chat/completions')}", "-H 'Content-Type: application/json'"]
    words += [f'-H "Authorization: Bearer ${endpoint.key_variable}"'] if endpoint.key_variable else []
    return f"curl {_over_lines([*words, f'-d {shlex.quote(json.dumps(body, ensure_ascii=False))}'])}"


def _format_python(endpoint: Endpoint) -> str:
    key = f'os.environ["{endpoint.key_variable}"]' if endpoint.key_variable else '"none"'
    lines = ["import os", ""] if endpoint.key_variable else []
    lines += [
        "from openai import OpenAI",
        "",
        f"client = OpenAI(base_url={_quote(endpoint.url)}, api_key={key})",
        f'messages = [{{"role": "user", "content": "{_HELLO}"}}]',
        f"stream = client.chat.completions.create(model={_quote(endpoint.model)}, messages=messages, stream=True)",
        "for chunk in stream:",
        "    for choice in chunk.choices:",
        '        print(choice.delta.content or "", end="", flush=True)',
        "print()",
    ]
    return "\n".join(lines)


def _over_lines(parts: list[str]) -> str:
    return " \\\n  ".join(parts)


def _quote(text: str) -> str:
    return json.dumps(text)  # a JSON string of a valid name is a Python string too


_FORMS: dict[ClientProgram, Callable[[Endpoint], str]] = {
    ClientProgram.OPENCODE: _format_opencode,
    ClientProgram.CONTINUE: _format_continue,
    ClientProgram.OPEN_WEBUI: _format_open_webui,
    ClientProgram.CURL: _format_curl,
    ClientProgram.PYTHON: _format_python,
}
# Where each configuration goes.
PLACES = {
    ClientProgram.OPENCODE: "opencode.json of a project, or ~/.config/opencode/opencode.json",
    ClientProgram.CONTINUE: "~/.continue/config.yaml",
    ClientProgram.OPEN_WEBUI: "a shell; then http://127.0.0.1:3000 in a browser",
    ClientProgram.CURL: "a shell",
    ClientProgram.PYTHON: "a file; pip install openai",
}


# The steps and accepted tokens of a request add up to its tokens, but for the first token and a cut last step. A larger
# difference means that the counters include other requests.
_OWN_SHARE, _OWN_TOKENS = 0.1, 16


_HELP = """\
/clear           clear the conversation
/system TEXT     set the system prompt; without TEXT remove it
/temperature T   of the sampling, 0 to 2; the model's own without T
/quit            leave; a line that begins with a blank is not a command"""


def obey_command(conversation: Conversation, line: str) -> str | None:
    """Execute a chat command (a line that begins with /); return its output, or None to leave."""
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
    """Return the warnings to show before a chat, one sentence each; mostly none."""
    boot, synthetic = describe_boot(run), run.plan.synthetic
    return [
        *([f"! {boot}"] if boot else []),
        *([f"({format_synthetic(synthetic)})"] if synthetic else []),
    ]


def format_turn(turn: Turn) -> str:
    """Return the measures of an answer in one line; unknown ones are left out."""
    done = turn.request
    parts = [f"{pluralize(done.tokens, 'token')} in {done.total:.1f} s"]
    parts += [f"{done.decode_tok_s:.1f} tok/s"] if done.decode_tok_s else []
    parts += [f"first after {format_number(done.ttft, 2, 's')}"] if done.ttft is not None else []
    length = find_acceptance_length(done)
    parts += [f"AL {length:.2f}"] if length is not None else []
    parts += [f"ended by {done.finish}"] if done.finish not in {"", "stop", "tool_calls"} else []
    return " · ".join(parts)


def find_acceptance_length(done: RequestDone) -> float | None:
    """Return the acceptance length of a request; None if the counters include steps of other requests."""
    if done.steps is None or done.accepted is None:
        return None
    others = abs(done.steps + done.accepted - done.tokens)
    return done.acceptance_length if others <= max(_OWN_TOKENS, _OWN_SHARE * done.tokens) else None


def format_tool_call(call: ToolCall) -> str:
    """Return a tool call as source code."""
    return f"{call.name}({call.arguments})"
