"""The user's launch request as a value; plans store it, remedies and experiments change it. Pure."""

import shlex
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from dflash_tui.common import yaml_loader
from dflash_tui.common.errors import UsageError
from dflash_tui.common.secrets import redact_secrets, redact_variables
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.common.yaml_loader import YamlError
from dflash_tui.planning.cluster import Cluster
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes.recipe import Mode, SetUp
from dflash_tui.planning.serve_flags import takes_path

# Values of these settings stay text: 1.10 is not 1.1, and true is not True.
_TEXT_SETTINGS = ("target.", "drafter.", "env.")


class _Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of a launch, named as on the command line, and settings."""

    profile: str | None = None
    """The profile, such as `stock` or `seed`."""
    variant: str | None = None
    """The variant, such as another drafter."""
    mode: Mode | None = None
    method: Method | None = None
    """The method, such as `dflash` or `mtp`; `none` is without speculation."""
    port: int | None = None
    """The port; by default the recipe's, or the next free one."""
    num_speculative_tokens: int | None = None
    """Drafted tokens per step; 0 is without speculation."""
    set_up: SetUp | None = None
    """The fast or the published set-up; by default fast if its answers were compared."""
    streams: int | None = None
    """Concurrent requests to set up for."""
    gpu: str | None = None
    """GPUs by index or UUID, separated by commas, or a class such as `h100`."""
    vllm: str | None = None
    """A release of vLLM to use instead of the recipe's."""
    engine: str | None = None
    """An environment, by name or folder, to use instead of the recipe's."""
    settings: dict[str, str] = {}
    """Flags of `vllm serve` and other `--set` settings, by name; values are unparsed YAML."""

    def to_options(self) -> list[str]:
        """Return the options of the command line for this request."""
        fields = [(name, value) for name in OPTION_FIELDS if (value := getattr(self, name)) is not None]
        words = [word for name, value in fields for word in _list_words(name, value)]
        return words + [word for name, value in self.settings.items() for word in ("--set", f"{name}={value}")]


OPTION_FIELDS = tuple(name for name in _Options.__struct_fields__ if name != "settings")


def _list_words(name: str, value: object) -> list[str]:
    return [f"--{value}"] if name == "set_up" else [f"--{name.replace('_', '-')}", str(value)]


class LaunchChanges(_Options, frozen=True):
    """Changes of a launch request. A field that is None stays as it is."""

    removed: tuple[str, ...] = ()
    """Fields to reset to the recipe's value, such as `vllm`."""
    removed_settings: tuple[str, ...] = ()
    """Settings to remove, such as `max-model-len`."""

    def __bool__(self) -> bool:
        """Whether there is a change."""
        return self != LaunchChanges()


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of the launch that helps; each front end words it."""

    changes: LaunchChanges
    is_example: bool = False
    """Whether the user must replace a part of it, such as NAME or a path."""


# Text, with changes of the launch in between.
Advice = tuple[str | Hint, ...]


def name_options(hint: Hint) -> str:
    """Return the options of the command line for a change."""
    return " ".join(hint.changes.to_options())


def format_advice(advice: Advice, word: Callable[[Hint], str] = name_options) -> str:
    """Return advice as one sentence; `word` words its changes."""
    return "".join(part if isinstance(part, str) else word(part) for part in advice)


def hint_setting(name: str, value: object, *, is_example: bool = False) -> Hint:
    """Return a hint that sets one setting."""
    return Hint(LaunchChanges(settings={name: str(value)}), is_example)


class LaunchRequest(_Options, frozen=True, kw_only=True):
    """The user's launch request. A field that is None is left to the recipe or the machine."""

    recipe: str
    """The recipe's name, or the absolute path of its file."""
    peers: tuple[str, ...] = ()
    """The other hosts of a server over several, by their ssh names."""
    link: str | None = None
    """This machine's interface or address on the subnet that the hosts share."""
    cluster: Cluster | None = None
    """All hosts on their link, once they were asked; a plan has its own."""

    def with_changes(self, changes: LaunchChanges) -> "LaunchRequest":
        """Return this request with `changes`."""
        fields: dict[str, Any] = {name: () if name == "peers" else None for name in changes.removed}
        fields |= {name: value for name in OPTION_FIELDS if (value := getattr(changes, name)) is not None}
        settings = {name: value for name, value in self.settings.items() if name not in changes.removed_settings}
        return replace(self, settings=settings | changes.settings, **fields)

    def to_argv(self) -> list[str]:
        """Return the recipe and options of this request, as arguments of `up` or `ab`."""
        argv = [*filter(None, [self.recipe]), *self.to_options()]
        argv += [word for host in self.peers for word in ("--peer", host)]
        return argv + (["--link", self.link] if self.link else [])

    def to_command(self) -> str:
        """Return the shell command that launches this request."""
        return shlex.join(["dflash-tui", "up", *self.to_argv()])

    def without_secrets(self) -> "LaunchRequest":
        """Return this request with secrets redacted, to be shown or stored."""
        fields = {name: redact_secrets(value) for name in _TEXTS if (value := getattr(self, name)) is not None}
        return replace(self, settings=redact_variables(self.settings), **fields)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> "LaunchRequest":
        """Return the request that earlier releases stored in run.json and experiment.json as a mapping of options.

        The recipe is under `""`, an option under its name, and a setting under `--set NAME`.
        """
        settings = {name.removeprefix("--set "): value for name, value in options.items() if name.startswith("--set ")}
        fields: dict[str, Any] = {
            name.removeprefix("--").replace("-", "_"): value
            for name, value in options.items()
            if name.startswith("--") and " " not in name
        }
        fields |= {"settings": settings} | ({"recipe": options[""]} if "" in options else {})
        return msgspec.convert(fields, cls, strict=False)


register_type(LaunchChanges)
register_type(LaunchRequest)

_TEXTS = ("recipe", "profile", "variant", "gpu", "vllm", "engine")


def parse_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of settings as YAML, where null removes a key; names of models and variables stay text."""
    values: dict[str, Any] = {}
    for name, text in settings.items():
        is_text = not text or (text != "null" and (name.startswith(_TEXT_SETTINGS) or takes_path(name)))
        try:
            values[name] = text if is_text else yaml_loader.parse_yaml_value(text)
        except YamlError as error:
            raise UsageError(f"--set {name}: {error}", evidence=text) from None
    return values
