"""What the user asked to launch, as a value: a plan keeps it, remedies and experiments change it. Pure."""

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
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes.recipe import Mode, SetUp
from dflash_tui.planning.serve_flags import takes_path

# Values of these settings are text as they stand: 1.10 is not 1.1, and true is not True.
_TEXT_SETTINGS = ("target.", "drafter.", "env.")


class _Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a launch is asked for with: the options of the command line by the same name, and settings."""

    profile: str | None = None
    """The profile, such as `stock` or `seed`."""
    variant: str | None = None
    """The variant, such as another drafter."""
    mode: Mode | None = None
    method: Method | None = None
    """How tokens are drafted, such as `dflash` or `mtp`; `none` is without speculation."""
    port: int | None = None
    """The port; without it the recipe's, or the next one that is free."""
    num_speculative_tokens: int | None = None
    """Tokens that the drafter proposes per step; 0 is without speculation."""
    set_up: SetUp | None = None
    """The fast or the published set-up; without it the fast one where its answers were compared."""
    streams: int | None = None
    """How many requests at a time it is for."""
    gpu: str | None = None
    """GPUs by index or UUID with commas between, or a class such as `h100`."""
    vllm: str | None = None
    """A release of vLLM instead of the recipe's."""
    engine: str | None = None
    """An environment by name or folder instead of the recipe's."""
    settings: dict[str, str] = {}
    """Flags of `vllm serve` and what else `--set` takes, by name; the values are YAML that is not parsed yet."""

    def to_options(self) -> list[str]:
        """Return the options of the command line that ask for this."""
        fields = [(name, value) for name in OPTION_FIELDS if (value := getattr(self, name)) is not None]
        words = [word for name, value in fields for word in _list_words(name, value)]
        return words + [word for name, value in self.settings.items() for word in ("--set", f"{name}={value}")]


OPTION_FIELDS = tuple(name for name in _Options.__struct_fields__ if name != "settings")


def _list_words(name: str, value: object) -> list[str]:
    return [f"--{value}"] if name == "set_up" else [f"--{name.replace('_', '-')}", str(value)]


class LaunchChanges(_Options, frozen=True):
    """What one launch request has that another has not. A field that is None stays as it is."""

    removed: tuple[str, ...] = ()
    """Names of fields that go back to what the recipe says, such as `vllm`."""
    removed_settings: tuple[str, ...] = ()
    """Names of settings to take back, such as `max-model-len`."""

    def __bool__(self) -> bool:
        """Whether anything changes."""
        return self != LaunchChanges()


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of the launch that helps; each front end has its own words for it."""

    changes: LaunchChanges
    is_example: bool = False
    """Whether a part of it is to be replaced, such as NAME or a path."""


# What to do: words, and between them changes of the launch.
Advice = tuple[str | Hint, ...]


def name_options(hint: Hint) -> str:
    """Return the options of the command line for a change."""
    return " ".join(hint.changes.to_options())


def format_advice(advice: Advice, word: Callable[[Hint], str] = name_options) -> str:
    """Return what to do as a sentence, in which `word` says the changes."""
    return "".join(part if isinstance(part, str) else word(part) for part in advice)


def hint_setting(name: str, value: object, *, is_example: bool = False) -> Hint:
    """Return the hint to make a setting."""
    return Hint(LaunchChanges(settings={name: str(value)}), is_example)


class LaunchRequest(_Options, frozen=True, kw_only=True):
    """What the user asked to launch. A field that is None is left to the recipe or to the machine."""

    recipe: str
    """The recipe's name, or the absolute path of its file."""
    peers: tuple[str, ...] = ()
    """The other hosts of a server over several, as ssh calls them."""
    link: str | None = None
    """The interface of this machine, or an address, whose subnet the hosts share."""

    def with_changes(self, changes: LaunchChanges) -> "LaunchRequest":
        """Return this request with `changes`."""
        fields: dict[str, Any] = {name: () if name == "peers" else None for name in changes.removed}
        fields |= {name: value for name in OPTION_FIELDS if (value := getattr(changes, name)) is not None}
        settings = {name: value for name, value in self.settings.items() if name not in changes.removed_settings}
        return replace(self, settings=settings | changes.settings, **fields)

    def to_argv(self) -> list[str]:
        """Return the recipe and the options that ask for this on the command line, to stand after `up` or `ab`."""
        argv = [self.recipe, *self.to_options()]
        argv += [word for host in self.peers for word in ("--peer", host)]
        return argv + (["--link", self.link] if self.link else [])

    def to_command(self) -> str:
        """Return the line for a shell that launches this."""
        return shlex.join(["dflash-tui", "up", *self.to_argv()])

    def without_secrets(self) -> "LaunchRequest":
        """Return this request without secrets in its values, for whoever else reads it."""
        fields = {name: redact_secrets(value) for name in _TEXTS if (value := getattr(self, name)) is not None}
        return replace(self, settings=redact_variables(self.settings), **fields)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> "LaunchRequest":
        """Return the request that run.json and experiment.json of earlier releases hold as a mapping of options.

        The recipe is under `""`, an option under its name, and each setting under `--set NAME`.

        Raises:
            msgspec.ValidationError: it holds no recipe, or a value that no option takes.
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
    """Return the values of settings: YAML, where null takes a key away, except for names of models and variables."""
    values: dict[str, Any] = {}
    for name, text in settings.items():
        is_text = not text or (text != "null" and (name.startswith(_TEXT_SETTINGS) or takes_path(name)))
        try:
            values[name] = text if is_text else yaml_loader.parse_yaml_value(text)
        except YamlError as error:
            raise UsageError(f"--set {name}: {error}", evidence=text) from None
    return values
