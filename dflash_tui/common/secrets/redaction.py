"""Remove secrets from text: access tokens, keys and passwords, and the prompts and answers in a log.

Whatever leaves this machine passes through here: exported runs and reports for a public tracker. Secrets are known by
their form, by the name beside them, and those of our own environment by their value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dflash_tui.common.secrets.own_secrets import LEFT_OUT, hide_own_secrets
from dflash_tui.common.secrets.secret_names import is_secret

_IS = r"(?:\\?['\"])?\s*[:=]\s*(?!(?i:none|null|true|false)\b)"
_FIGURE = r"[\d.]+(?:[mu]?s)?(?:[\s,;)}\]]|$)"
# A list, a quoted text or a word.
_VALUE = r"(?:\[[^\]]*\]?|\\?'[^'\\]*|\\?\"[^\"\\]*|[^\s'\",;&\]})\\]+)"
_KEY_BEGINS = r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_PRIVATE_KEY = rf"({_KEY_BEGINS})(?:[^-]|-(?!----))*(?:-----END [A-Z ]{{0,60}}-----)?"
# Lines of an RSA key of 16,384 bits, with its header.
_LONGEST_KEY = 220
# Each with what a text must hold, in small letters, for the pattern to be tried: logs are long. No pattern may look
# back and forth in a line of a megabyte. They are compiled by `re` when they are tried first: most commands never do.
_SECRETS = {
    name: (tuple(words.split()), pattern)
    for name, words, pattern in (
        # Forms that tokens have wherever they stand.
        ("token", "hf_ api_org_ sk- sk_ rk_ ghp gho ghu ghs ghr glpat gldt nvapi xox xapp github_pat npm_ akia asia "
         "aiza eyj gsk_ r8_ xai- pplx- pypi- ya29. hvs. dckr_ sg. lsv2_ tvly- dop_v1_ sq0 shpat_ atatt3 glrt- rpa_ "
         "whsec_ ntn_ figd_ lin_api_ tgp_v1_ age-secret sntrys_ sntryu_ pcsk_ jina_ dp. atbb glptt glft glsoat glimt "
         "glcbt :aa gocspx- dapi tskey- glsa_ doo_v1_ dor_v1_ shpss_ shpca_ shppa_ hvb. wandb_v1_",
         r"()\b(?:(?:hf(?:_oauth)?|api_org|npm|dckr_pat|shp(?:at|ss|ca|pa)|rpa|whsec|ntn|lin_api)_[A-Za-z0-9]{16,}|"
         r"hf_jwt_[\w.-]{16,}|GOCSPX-[\w-]{16,}|dapi[a-f0-9]{32}|tskey-[a-z]{2,20}-[\w-]{12,}|(?:glsa|wandb_v1)_\w{24,}|"
         r"SG\.[\w-]{16,}\.[\w-]{16,}|(?:lsv2|figd|tgp_v1)_\w{24,}|tvly-[\w-]{20,}|do[opr]_v1_[a-f0-9]{32,}|"
         r"sq0[a-z]{3}-[\w-]{20,}|ATATT3[\w=-]{20,}|gl(?:rt|ptt|ft|soat|imt|cbt)-[\w-]{16,}|sntry[su]_[\w=+/-]{24,}|"
         r"pcsk_\w{24,}|jina_[a-f0-9]{32}\w{8,}|dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{24,}|ATBB[A-Za-z0-9]{20,}|\d{8,10}:AA[\w-]{33}|"
         r"AGE-SECRET-KEY-1[A-Z0-9]{20,}|(?:sk|rk_live|rk_test|gh[oprsu]|glpat|gldt|nvapi|xapp|github_pat)[-_][A-Za-z0-9_-]{16,}|"
         r"xox[a-z]-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{30,}|(?:gsk_|r8_|xai-|pplx-)[A-Za-z0-9]{24,}|pypi-[\w-]{40,}|(?:ya29|hv[bs])\.[\w-]{20,}|eyJ[\w-]{8,2000}\.[\w-]+\.[\w-]*)"),
        ("private key", "-----begin", _PRIVATE_KEY),
        ("header", "authorization", r"((?i:authorization)\W{1,5}(?:b['\"])?(?:[A-Za-z]+ +)?)[^\s'\",\]})]+"),
        # Who knows such an address may write there.
        ("webhook", "webhook hooks.slack",
         r"(://(?:hooks\.slack\.com/(?:services|workflows)|[\w.]*discord(?:app)?\.com/api/webhooks)/)[^\s'\"]+"),
        ("bearer", "bearer", r"((?i:bearer) )[\w.~+/-]{8,}=*"),
        ("address", "@", r"(://)[^/\s'\"]+(?=@)"),
        ("query", "=", r"((?i:[?&][\w.-]*(?:token|key|secret|sig|password|policy)|signature|credential)=)[^&\s'\"]+"),
        ("assignment", "key secret pass pwd credential",
         rf"((?:(?i:(?:api|access|secret|private)[-_]?key(?:[-_]?id)?|secret|passw(?:or)?d|passphrase|credentials?)|"
         rf"[A-Z0-9_](?:KEY|PASS|PWD)){_IS}){_VALUE}"),
        ("token assignment", "token", rf"((?i:token){_IS})(?!{_FIGURE}){_VALUE}"),
        ("option", "--",
         r"((?<![\w-])--[\w-]*(?:api[-_]key|token|secret|password)(?:\s+|['\"],\s*['\"]))(?!-)[^\s'\",\]]+"),
    )
}  # fmt: skip
# Names and passwords of addresses as people mistype them: with one slash, as in a `Path`, with a slash or quotes in the
# password, without a scheme. In host:port/path@version there is none. A quote ends a text where a list or JSON goes on.
_QUOTE = r"['\"](?![,:\]}\s])"
# Without a way back: what holds no @ within a thousand characters is given up at once.
_NO_AT = rf"(?:[^\s'\"@]{{1,32}}+|{_QUOTE}){{0,32}}+"
_TYPED = rf"{_NO_AT}(?:@{_NO_AT}){{0,8}}"
_PASSWORDS = (
    rf"(:/{{1,3}})(?:[^/\s'\"]|{_QUOTE})+(?=@)",
    rf"(:/{{1,3}})[^/\s:'\"]*:(?!\d{{1,5}}/){_TYPED}(?=@)",
    rf"()(?<![\w.@:+-])[\w.+-]++(?:@[\w.+-]++)?:(?!/|\d{{1,5}}/|.?@){_TYPED}(?=@(?!sha\d))",
)
# What is a secret by itself: tokens, private keys, addresses with a password or a signature, and headers.
_FORMS = (
    *(_SECRETS[name] for name in ("token", "private key", "address", "webhook")),
    (("sig",), r"(?i)[?&][\w-]*sig(?:nature)?=[^&\s'\"]{4,}"),
    *((("@",), pattern) for pattern in _PASSWORDS),
    (("authorization", "bearer"), r"(?i)authorization\s*[:=]\s*[a-z]+\s+[\w.~+/-]{8}|\bbearer\s+[\w.~+/-]{16}"),
)
# How lines about a request begin, up to where they may quote it. What else a debug line of the modules that read
# prompts and answers says is left out, too: tool parsers alone write them in twenty forms.
_QUOTES = re.compile(
    r"(?P<named>Received request |Generated response |Request )|"
    r"(?:Received [\w ]{1,40} request|Convert to OpenAI request|response_body=)"
)
_DEBUG = re.compile(r"\bDEBUG [^\[\]]{1,60}\[(?P<place>[\w./]{1,200}):\d+\] ")
# What pydantic quotes of a request that it refuses.
_REFUSED = re.compile(r"(\binput_value=).*?(?=, input_type=|\n|\Z)")
_READS_REQUESTS = re.compile(r"serving|logger|chat_utils|renderer|harmony|context|pars(?:er|ing)|reasoning|protocol")


def looks_secret(value: object) -> bool:
    """Whether a value has the form of a token, or is an address with a password in it."""
    text = str(value)
    small = text.lower()
    return any(re.search(pattern, text) for words, pattern in _FORMS if any(word in small for word in words))


def redact_secrets(text: str, instead: str = LEFT_OUT) -> str:
    """Return clean `text` without our own secrets, access tokens, keys and passwords; `instead` is in their places."""
    text = hide_own_secrets(text, instead)
    small = text.lower()
    for words, pattern in _SECRETS.values():
        if any(word in small for word in words):
            text = re.sub(pattern, rf"\1{instead}", text)
    return text


def redact_typed_secrets(text: str, instead: str = LEFT_OUT) -> str:
    """Return clean `text` without tokens, and without passwords and keys in addresses, also in mistyped ones."""
    patterns = _PASSWORDS if "@" in text else ()
    for pattern in (*patterns, _SECRETS["query"][1], _SECRETS["token"][1]):
        text = re.sub(pattern, rf"\1{instead}", text)
    return text


def redact_variables(env: Mapping[str, str], instead: str = LEFT_OUT) -> dict[str, str]:
    """Return an environment, or other values by name, without what is secret by its name or its form."""
    return {name: instead if is_secret(name) else redact_secrets(value, instead) for name, value in env.items()}


def redact_argv(argv: Sequence[str], instead: str = LEFT_OUT) -> tuple[str, ...]:
    """Return a command without tokens, keys and passwords: also without the word after a flag that names one."""
    redacted = [redact_secrets(word, instead) for word in argv]
    for place, flag in enumerate(argv[:-1]):
        if flag.startswith("-") and "=" not in flag and is_secret(flag) and not argv[place + 1].startswith("--"):
            redacted[place + 1] = instead
    return tuple(redacted)


def redact_private_keys(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines of a log without the private keys in them, which have a line for each 48 bytes."""
    left = 0  # how many lines may still be of a key that began above
    for line in lines:
        begins = [*re.finditer(_KEY_BEGINS, line)] if "PRIVATE KEY" in line else []
        ends = "-----END " in line[begins[-1].end() if begins else 0 :]
        yield LEFT_OUT if left and not begins else line
        left = 0 if ends else _LONGEST_KEY if begins else max(left - 1, 0)


def redact_prompts(text: str) -> str:
    """Return lines of a log without the prompts and answers that vLLM writes with --enable-log-requests or at DEBUG."""
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
