"""Environment variables of the processes that we start: a server inherits the user's, a helper gets no secrets.

A helper is uv, pip, the engine's Python before a launch, or a driver's tool; it may name the secrets that it needs.
"""

from __future__ import annotations

import os

from dflash_tui.common import paths
from dflash_tui.common.secrets import is_secret, looks_secret

# Not inherited by servers and helpers: meant for this program's Python, or would change what a server does.
_DROPPED = frozenset({"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VLLM_API_KEY"})
# Their URLs may contain passwords; only helpers that use the network get them.
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
# Where packages come from. User names and passwords for private indexes are included on purpose, since uv and pip need
# them; tokens for publishing or for GitHub are not.
PACKAGE_INDEXES = (
    *PROXIES,
    *("UV_INDEX", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX", "UV_FIND_LINKS", "UV_KEYRING_PROVIDER"),
    *("PIP_INDEX", "PIP_EXTRA_INDEX", "PIP_FIND_LINKS", "PIP_KEYRING_PROVIDER", "PIP_PROXY"),
)
# A program that asks for a passphrase; its name looks like a secret's.
OPENSSH = "SSH_ASKPASS"


def build_server_environment() -> dict[str, str]:
    """Return our environment for a server, without variables of our own Python and passwords of package indexes."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _DROPPED and not (name.startswith(("UV_", "PIP_")) and _is_secret(name, value))
    }


def build_own_environment() -> dict[str, str]:
    """Return our environment for another process of this program, which imports the same package."""
    return {**os.environ, "PYTHONPATH": build_own_path()}


def build_own_path() -> str:
    """Return the PYTHONPATH by which another process of this program imports the same package."""
    return os.pathsep.join(filter(None, (str(paths.PACKAGE_ROOT.parent), os.environ.get("PYTHONPATH"))))


def build_helper_environment(*needed: str) -> dict[str, str]:
    """Return our environment for a helper, without secrets except variables that start with one of `needed`."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in _DROPPED and ((needed and name.startswith(needed)) or not _is_secret(name, value))
    }
    return env | {"PYTHONSAFEPATH": "1"}


def _is_secret(name: str, value: str) -> bool:
    return is_secret(name) or looks_secret(value)
