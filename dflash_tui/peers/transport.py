"""How the other host is reached; what builds a command raises UsageError for a text that is no name of a host."""

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
from dflash_tui.peers.far_installer import MARK
from dflash_tui.planning.cluster import LOCAL

# A question nobody sees would wait for ever. A host that loads models answers late; a connection that is cut is found
# within 12 s. One of its own: what another shares with us ends with that.
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
# Constant words, in one line for any shell of a user. One that is no login's lacks the folder where pip and uv put
# programs of a user; where there is none of ours, the one that was installed from another host is run.
_OWN = '"${XDG_DATA_HOME:-$HOME/.local/share}/dflash-tui/program/bin/dflash-tui"'
_AGENT = (
    """sh -c 'PATH="$HOME/.local/bin:$PATH"; command -v dflash-tui >/dev/null || exec """
    f"""{_OWN} agent; exec dflash-tui agent'"""
)
# The words of a user come as one word of harmless characters: quotes and backslashes mean other things to csh and fish.
_RUN = (
    """sh -c 'PATH="$HOME/.local/bin:$PATH"; eval "$(printf %b "$1")"; """
    f"""command -v dflash-tui >/dev/null || exec {_OWN} "$@"; exec dflash-tui "$@"' sh"""
)
_PLAIN = frozenset((string.ascii_letters + string.digits + " -_=./:,+%@").encode())
# A user looks at it: a network that is away for some seconds, as when a laptop roams, takes nobody's panel away.
_PATIENT = {"ServerAliveInterval": "5", "ServerAliveCountMax": "3"}
# The address of the link is that of a host whose key is known by another name; whoever else has the address is refused.
_ON_LINK = {"ProxyCommand": "none", "ProxyJump": "none", "CheckHostIP": "no", "UpdateHostKeys": "no"}
# The fastest where processors have instructions for it; the others that a user allows follow.
_FAST = {"Ciphers": "^aes128-gcm@openssh.com,aes256-gcm@openssh.com", "Compression": "no"}
_SSH_PORT = "22"
# The first Python that is new enough and can make environments runs the text that comes first on stdin.
_INSTALL = (
    """sh -c 'PATH="$HOME/.local/bin:$PATH"; why=no-python; """
    """for python in python3 python3.12 python3.13 python3.11 python3.14; do """
    """"$python" -I -c "import sys; sys.exit(sys.version_info < (3, 11))" </dev/null >/dev/null 2>&1 || continue; """
    """why=no-venv; """
    """"$python" -I -c "import venv, ensurepip" </dev/null >/dev/null 2>&1 || continue; """
    """exec "$python" -I -c "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])))" "$@"; """
    """done; echo """
    f"""{MARK} $why; exit 1' sh"""
)
_WORD = re.compile(r"[\w.+-]+", re.ASCII)
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
    (r"Permission denied|Too many authentication failures", "{host} refuses your key", "ssh-copy-id {host}"),
    (r"Connection refused", "no ssh server answers on {host}", "on it: sudo apt install openssh-server"),
    (
        r"timed out|No route to host|Network is unreachable",
        "{host} cannot be reached",
        "check the cable and its address: ping {host}",
    ),
)


class LinkAddress(NamedTuple):
    """How a host is reached by a link: the addresses of both ends, and the name by which its key is known."""

    near: str
    far: str
    key_name: str


class NeedsProgram(UsageError):
    """A host has no program of ours, or one of another release in our own folder: this one may be installed there."""

    def __init__(self, host: str, what: str, *, evidence: str = "") -> None:
        hint = "--install-peers with --host, plan, doctor, up or ab installs it there; on a terminal they ask"
        super().__init__(what, evidence=evidence, hint=hint)
        self.host = host


def check_hosts(hosts: Sequence[str]) -> None:
    """Raise UsageError where a name could be taken for an option of ssh, or one host is named twice."""
    for host in hosts:
        if not is_host_name(host):
            what = f"'{host[:80]}' is not a name of a host"
            raise UsageError(what, hint="as for ssh: NAME, USER@NAME or an address")
    if len({*hosts}) < len(hosts) and {*hosts} != {LOCAL}:
        raise UsageError(f"--peer: {', '.join(hosts)} names a host twice", hint="each further host has one --peer")


def build_agent_command(host: str) -> list[str]:
    """Return the command that runs the agent on `host`, without a shell of this machine."""
    if host == LOCAL:
        return [sys.executable, "-P", "-m", "dflash_tui", "agent"]
    return _build_ssh_command(host, _AGENT)


def build_install_command(host: str, *words: str) -> list[str]:
    """Return the command that runs a text of Python on `host`, which is to come on stdin, as long as `words` say first.

    Raises:
        ValueError: a word could mean something to a shell.
    """
    if wrong := [word for word in words if not _WORD.fullmatch(word)]:
        raise ValueError(wrong)
    return _build_ssh_command(host, " ".join([_INSTALL, *words]))


def build_rsync_words(host: str, link: LinkAddress | None, source: str, folder: str) -> list[str]:
    """Return the words by which rsync copies what is in `source` into a folder on `host`, by the address of a link."""
    check_hosts([host])
    user, at, name = host.rpartition("@")
    name = f"[{name}]" if ":" in name else name
    return ["-e", " ".join(_build_ssh_words(_choose_way(link))), "--", source, f"{user}{at}{name}:{folder}/"]


def build_probe_command(host: str, link: LinkAddress) -> list[str]:
    """Return the command that succeeds where ssh reaches `host` by the address of a link."""
    return _build_ssh_command(host, "true", _choose_way(link))


def _choose_way(link: LinkAddress | None) -> Mapping[str, str]:
    if link is None:
        return _FAST
    return _FAST | _ON_LINK | {"HostName": link.far, "BindAddress": link.near, "HostKeyAlias": link.key_name}


def build_program_command(
    host: str, words: Sequence[str], variables: Mapping[str, str] = _NOTHING, *, on_terminal: bool
) -> list[str]:
    """Return the command that runs this program on `host`; `words` follow the program's name.

    `variables` are set there beside those of the login. `on_terminal` it gets a terminal, whose kind (TERM) ssh tells.
    """
    exports = [f"export {shlex.quote(f'{name}={value}')}" for name, value in variables.items()]
    command = f"{_RUN} {_encode_word('; '.join([*exports, shlex.join(['set', '--', *words])]))}"
    return _build_ssh_command(host, command, _PATIENT, on_terminal=on_terminal)


def _encode_word(text: str) -> str:
    """Return a text as one word that every shell reads alike, for `printf %b`."""
    octal = (chr(byte) if byte in _PLAIN else f"\\0{byte:03o}" for byte in os.fsencode(text))
    return f"'{''.join(octal)}'"


def build_settings_command(host: str) -> list[str]:
    """Return the command by which ssh says what it is configured to do for `host`; nothing is connected."""
    check_hosts([host])
    return ["ssh", "-G", "--", host]


def read_key_name(host: str, settings: str) -> str:
    """Return the name by which the key of `host` is known, from what ssh says of its settings."""
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
    """Return why a connection ended, by the exit code of ssh and the last lines of what it wrote.

    255 is ssh's own failure, anything else the far command's.
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
