"""Secrets: redact them in what leaves this machine, and refuse them where others would see them.

A secret is the value of an environment variable whose name says so (`*_KEY`, `*_TOKEN`, `*_SECRET`, `*PASSWORD*`), the
hub's token, or a text in the form of a token. Our own folders and our own screen are not searched.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from dflash_tui.common import paths, private_files

LEFT_OUT = "[left out]"
_LARGEST_TOKEN_FILE = 1 << 16
# Shorter values occur in any text by chance.
_SHORTEST = 8
_NAME = re.compile(r"(?i)(?:^|[^a-z]|api|access|auth|secret|private)(?:key|token|secret)$|password|passwd|passphrase")
# Tokens of a vocabulary are not secrets.
_OF_TEXT = re.compile(r"(?i)(?:bos|eos|pad|unk|sep|cls|mask|image|video|audio|special)[-_]token$")
_TOKENS = re.compile(
    r"\b(?:hf_|api_org_|gh[opsru]_|github_pat_|glpat-|npm_|gsk_|r8_|dckr_pat_|wandb_v1_)[\w-]{16,}"
    r"|\b(?:sk|rk|nvapi|pypi|xai|pplx|xox[a-z])-[\w-]{16,}|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bAIza[\w-]{30,}"
    r"|\beyJ[\w-]{8,2000}\.[\w-]+\.[\w-]*"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[^-]|-(?!----))*(?:-----END [A-Z ]{0,60}-----)?"
)
_ASSIGNED = r"(?:api[-_]?key|[-_]key(?:[-_]id)?|token|secret|password|passwd)"
# Values marked as secret by what precedes them: in an address, a header, an assignment or a command.
_MARKED = re.compile(
    r"((?i:authorization)\W{1,5}(?:[A-Za-z]+ +)?|(?i:\bbearer) +)[^\s'\",\]})]{8,}"
    r"|(://)[^/\s'\"@]{0,200}:[^\s'\"@]{1,500}(?=@)"
    rf"|((?i:{_ASSIGNED})['\"]?\s?[:=]\s?)\[(?!left out\])[^\]]{{1,2000}}"
    rf"|((?i:{_ASSIGNED})['\"]?\s?[:=]\s?['\"]?)(?!\[left out\])"
    r"(?!(?i:none|null|true|false)\b)(?![\d.]+\b)[^\s'\",;&\]})]{4,}"
    rf"|((?<![\w-])--[\w-]{{0,40}}(?i:{_ASSIGNED})(?:\s+|['\"],\s*['\"]))(?!-)[^\s'\",\]]+"
)
# Beginnings of vLLM's log lines that may quote a request; modules that read prompts also quote them at DEBUG.
_QUOTES = re.compile(
    r"(?P<named>Received request |Generated response |Request )|"
    r"(?:Received [\w ]{1,40} request|Convert to OpenAI request|response_body=)"
)
_DEBUG = re.compile(r"\bDEBUG [^\[\]]{1,60}\[(?P<place>[\w./]{1,200}):\d+\] ")
_READS_REQUESTS = re.compile(r"serving|logger|chat_utils|renderer|harmony|context|pars(?:er|ing)|reasoning|protocol")
# What pydantic quotes from a request that it rejects.
_REFUSED = re.compile(r"(\binput_value=).*?(?=, input_type=|\n|\Z)")


@lru_cache(maxsize=2048)
def is_secret(name: str) -> bool:
    """Whether a variable, flag or key with this name holds a secret."""
    return bool(_NAME.search(name)) and not _OF_TEXT.search(name)


def looks_secret(value: object) -> bool:
    """Whether a value has the form of a token, or is an address with a password."""
    text = str(value)
    return bool(_TOKENS.search(text) or re.search(r"://[^/\s'\"@]{0,200}:[^\s'\"@]{1,500}@", text))


def redact_secrets(text: str, instead: str = LEFT_OUT) -> str:
    """Return `text` with our own secrets, access tokens, keys and passwords replaced by `instead`."""
    return _redact(text, list_own_secrets(), instead)


def _redact(text: str, own: Sequence[str], instead: str = LEFT_OUT) -> str:
    for value in own:
        text = text.replace(value, instead)
    text = _TOKENS.sub(lambda _: instead, text)
    return _MARKED.sub(lambda match: f"{next(filter(None, match.groups()), '')}{instead}", text)


def list_own_secrets() -> list[str]:
    """Return the secrets of this environment and the hub's token, the longest first."""
    values = [os.environ[name] for name in os.environ if is_secret(name)]
    values = [value for value in values if not value.startswith(("/", "~"))]
    return sorted({value for value in (*values, _read_hub_token()) if len(value) >= _SHORTEST}, key=len)[::-1]


def _read_hub_token() -> str:
    path = os.environ.get("HF_TOKEN_PATH")
    file = paths.expand_variables(path) if path else paths.hub_home_folder() / "token"
    try:
        return private_files.read_file(file, _LARGEST_TOKEN_FILE).decode().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def redact_variables(env: Mapping[str, str], instead: str = LEFT_OUT) -> dict[str, str]:
    """Return an environment or another mapping with values replaced that are secret by name or form."""
    return {name: instead if is_secret(name) else redact_secrets(value, instead) for name, value in env.items()}


def redact_argv(argv: Sequence[str], instead: str = LEFT_OUT) -> tuple[str, ...]:
    """Return a command with tokens, keys and passwords replaced, also the word after a flag that names one."""
    redacted = [redact_secrets(word, instead) for word in argv]
    for place, flag in enumerate(argv[:-1]):
        if flag.startswith("-") and is_secret(flag) and not argv[place + 1].startswith("--"):
            redacted[place + 1] = instead
    return tuple(redacted)


def redact_prompts(text: str) -> str:
    """Return log lines without the prompts and answers that vLLM logs with --enable-log-requests or at DEBUG."""
    text = "\n".join(map(_without_quote, text.split("\n")))
    return _REFUSED.sub(rf"\1{LEFT_OUT}", text) if "input_value=" in text else text


def _without_quote(line: str) -> str:
    debug = _DEBUG.search(line)
    if debug and _READS_REQUESTS.search(debug["place"]):
        return f"{line[: debug.end()]}{LEFT_OUT}"
    if not (head := _QUOTES.search(line)):
        return line
    if not head["named"]:
        return f"{line[: head.end()]} {LEFT_OUT}"
    start = max(line.find(": ", head.end()), head.end() - 2)
    words = ("prompt", "output") if head["named"] != "Request " else (" details: ", " JSON body: ")
    quotes = any(word in line[head.end() :] for word in words)
    return f"{line[: start + 2]}{LEFT_OUT}" if quotes else line


def find_secret(name: str, value: object) -> str | None:
    """Return where a flag, variable or setting contains a secret, such as `a.auth_token`; None if it has none."""
    return _find_secret(name, value, list_own_secrets())


def _find_secret(name: str, value: object, own: Sequence[str]) -> str | None:
    import msgspec

    left = [(name, value)]
    while left:  # no recursion: the nesting depth has no limit
        place, value = left.pop()
        if isinstance(value, str) and value.lstrip()[:1] in {"{", "["}:
            with contextlib.suppress(msgspec.MsgspecError, RecursionError, UnicodeError):
                value = msgspec.json.decode(value)
        if isinstance(value, Mapping):
            left += [(f"{place}.{key}", item) for key, item in value.items()]
        elif isinstance(value, list | tuple | set | frozenset):
            left += [(place, item) for item in value]
        else:
            text = str(value)
            is_named = is_secret(place.rstrip("+")) and text.lower() not in {"", "true", "false", "none", "null"}
            if is_named or _redact(text, own) != text:
                return place
    return None


def explain_secrets(part: str, values: Mapping[str, object], own: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each name in a part of a recipe or patch whose value looks like a secret, and what to do instead.

    `own` are the secrets of `list_own_secrets`.
    """
    for name, value in values.items():
        if place := _find_secret(f"{part}.{name}", value, own):
            yield name, f"{place} looks like a secret; {advise_on_secret(place)}"


def advise_on_secret(place: str) -> str:
    """Return how to give a secret to a server without a command or a file that contains it."""
    last = place.rstrip("+").rpartition(".")[2].replace("-", "_").upper()
    if last == "API_KEY" and not place.startswith("env."):
        last = "VLLM_API_KEY"
    if last == "SSL_KEYFILE_PASSWORD":
        return "take a key file without a passphrase, which only you can read"
    return f"export {last if is_secret(last) else 'it'} in your shell: the server inherits it, and no command shows it"
