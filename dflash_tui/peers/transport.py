"""The ssh and rsync commands that reach another host; building one raises UsageError for an invalid host name."""

from __future__ import annotations

import os
import re
import shlex
import string
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import is_host_name
from dflash_tui.common.sanitizer import join_last_lines
from dflash_tui.planning.cluster import LOCAL

# Prompts would wait forever, unseen. A host that loads models answers late; a dead connection is found within 12 s.
# Connections are not shared, since a shared one ends with its owner.
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "2",
    "ServerAliveCountMax": "5",
    "ControlMaster": "no",
    "ControlPath": "none",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "RequestTTY": "no",
}
# Constant words in one line, for any login shell. A non-login shell lacks the folder of programs that pip and uv
# install for a user; without dflash-tui there, the one that another host installed is run.
LINK = "program"
_OWN = '"${XDG_DATA_HOME:-$HOME/.local/share}/dflash-tui/program/bin/dflash-tui"'
# The user's words are sent as one word of harmless characters, since csh and fish read quotes and backslashes
# differently.
_RUN = (
    """sh -c 'PATH="$HOME/.local/bin:$PATH"; eval "$(printf %b "$1")"; """
    f"""command -v dflash-tui >/dev/null || exec {_OWN} "$@"; exec dflash-tui "$@"' sh"""
)
_SCRIPT = """sh -c 'eval "$(printf %b "$1")"' sh"""
_PLAIN = frozenset((string.ascii_letters + string.digits + " -_=./:,+%@").encode())
# For interactive use: a network that is away for some seconds, as when a laptop roams, must not end the panel.
_PATIENT = {"ServerAliveInterval": "5", "ServerAliveCountMax": "3"}
# ssh knows the key under the host's usual name; another machine with the link's address is refused.
_ON_LINK = {"ProxyCommand": "none", "ProxyJump": "none", "CheckHostIP": "no", "UpdateHostKeys": "no"}
# The fastest ciphers on processors with AES instructions; the user's other ciphers follow.
_FAST = {"Ciphers": "^aes128-gcm@openssh.com,aes256-gcm@openssh.com", "Compression": "no"}
_SSH_PORT = "22"
_NOTHING: Mapping[str, str] = MappingProxyType({})
_NO_PROGRAM = 127
_SSH_FAILED = 255
_FAILURES = (
    (r"Could not resolve hostname", "there is no host called {host}", "check its name, or add it to ~/.ssh/config"),
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "the ssh host key of {host} has changed",
        "if the host was reinstalled: ssh-keygen -R {host}, then connect once by hand: ssh {host}",
    ),
    (
        r"Host key verification failed",
        "{host} is not known to ssh yet",
        "connect once by hand, and compare its key: ssh {host}",
    ),
    (r"Permission denied|Too many authentication failures", "{host} rejects your ssh key", "ssh-copy-id {host}"),
    (r"Connection refused", "no ssh server answers on {host}", "on it: sudo apt install openssh-server"),
    (
        r"timed out|No route to host|Network is unreachable",
        "{host} cannot be reached",
        "check the cable and its address: ping {host}",
    ),
)


class LinkAddress(NamedTuple):
    """A host on a link: the addresses of both ends, and the name by which ssh knows its key."""

    near: str
    far: str
    key_name: str


class NeedsProgram(UsageError):
    """A host lacks dflash-tui, or our own folder there has another release; this one may be installed."""

    def __init__(self, host: str, what: str, *, evidence: str = "") -> None:
        hint = "--install-peers with --host, plan, doctor, up or ab installs it there; on a terminal they ask"
        super().__init__(what, evidence=evidence, hint=hint)
        self.host = host


def check_hosts(hosts: Sequence[str]) -> None:
    """Raise UsageError if a name could be an option of ssh, or a host is named twice."""
    for host in hosts:
        if not is_host_name(host):
            what = f"'{host[:80]}' is not a host name"
            raise UsageError(what, hint="as for ssh: NAME, USER@NAME or an address")
    if len({*hosts}) < len(hosts) and {*hosts} != {LOCAL}:
        raise UsageError(f"--peer: {', '.join(hosts)} names a host twice", hint="each further host has one --peer")


def build_agent_command(host: str, verb: str) -> list[str]:
    """Return the command that runs a verb of the agent on `host`; no local shell is involved."""
    if host == LOCAL:
        return [sys.executable, "-P", "-m", "dflash_tui", "agent", verb]
    return _build_ssh_command(host, _build_program_words(["agent", verb]))


def build_install_command(host: str, script: str, *words: str) -> list[str]:
    """Return the command that runs the text of a shell script with `words` on `host`."""
    return _build_ssh_command(host, f"{_SCRIPT} {_encode_word(shlex.join(['set', '--', *words]) + chr(10) + script)}")


def build_rsync_words(host: str, link: LinkAddress | None, source: str, folder: str) -> list[str]:
    """Return rsync's arguments to copy the content of `source` into a folder on `host`, over a link if given."""
    check_hosts([host])
    user, at, name = host.rpartition("@")
    name = f"[{name}]" if ":" in name else name
    return ["-e", " ".join(_build_ssh_words(_choose_way(link))), "--", source, f"{user}{at}{name}:{folder}/"]


def build_probe_command(host: str, link: LinkAddress) -> list[str]:
    """Return the command that succeeds if ssh reaches `host` over a link."""
    return _build_ssh_command(host, "true", _choose_way(link))


def _choose_way(link: LinkAddress | None) -> Mapping[str, str]:
    if link is None:
        return _FAST
    return _FAST | _ON_LINK | {"HostName": link.far, "BindAddress": link.near, "HostKeyAlias": link.key_name}


def build_program_command(
    host: str, words: Sequence[str], variables: Mapping[str, str] = _NOTHING, *, on_terminal: bool
) -> list[str]:
    """Return the command that runs dflash-tui on `host` with the arguments `words`.

    `variables` are added to the login's. With `on_terminal` it gets a terminal of the kind (TERM) that ssh passes on.
    """
    return _build_ssh_command(host, _build_program_words(words, variables), _PATIENT, on_terminal=on_terminal)


def _build_program_words(words: Sequence[str], variables: Mapping[str, str] = _NOTHING) -> str:
    exports = [f"export {shlex.quote(f'{name}={value}')}" for name, value in variables.items()]
    return f"{_RUN} {_encode_word('; '.join([*exports, shlex.join(['set', '--', *words])]))}"


def _encode_word(text: str) -> str:
    """Return a text as one word for `printf %b`, which every shell reads alike."""
    octal = (chr(byte) if byte in _PLAIN else f"\\0{byte:03o}" for byte in os.fsencode(text))
    return f"'{''.join(octal)}'"


def read_key_name(host: str, settings: str) -> str:
    """Return the name by which ssh knows the key of `host`, from ssh's settings."""
    values = dict(line.split(" ", 1) for line in settings.splitlines() if " " in line)
    if alias := values.get("hostkeyalias"):
        return alias
    name, port = values.get("hostname", host.rpartition("@")[2]), values.get("port", _SSH_PORT)
    return name if port == _SSH_PORT else f"[{name}]:{port}"


def _build_ssh_command(
    host: str, command: str, more: Mapping[str, str] = _NOTHING, *, on_terminal: bool = False
) -> list[str]:
    check_hosts([host])
    return [*_build_ssh_words(more, on_terminal=on_terminal), "--", host, command]


def _build_ssh_words(more: Mapping[str, str], *, on_terminal: bool = False) -> list[str]:
    settings = {**_OPTIONS, **more, **({"RequestTTY": "yes"} if on_terminal else {})}
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-t" if on_terminal else "-T", *options]


def explain_end(host: str, code: int | None, errors: str) -> DflashError:
    """Return why a connection ended, from ssh's exit code and the last lines of its stderr.

    255 is ssh's own failure; any other code is the remote command's.
    """
    last = join_last_lines(errors, 3)
    if code == _NO_PROGRAM or re.search(r"dflash-tui: (?:command )?not found", errors):
        return NeedsProgram(host, f"{host} has no dflash-tui", evidence=last)
    if code == _SSH_FAILED:
        for sign, what, hint in _FAILURES:
            if re.search(sign, errors):
                return UsageError(what.format(host=host), evidence=last, hint=hint.format(host=host))
    return DflashError(
        f"the connection to {host} ended", evidence=last or f"exit code {code}", hint=f"try it by hand: ssh {host}"
    )
