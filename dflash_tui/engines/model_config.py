"""Read a model's config.json before downloading it, and find its drafters in the hub's model tree."""

from __future__ import annotations

import asyncio
import itertools
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dflash_tui.common import untrusted_json
from dflash_tui.common.errors import DflashError
from dflash_tui.engines import model_hub
from dflash_tui.engines.model_hub import Access, HubAccessError, ModelAvailability
from dflash_tui.planning.derivation.checkpoint import Checkpoint, read_checkpoint
from dflash_tui.planning.derivation.pair import look_up_drafter
from dflash_tui.planning.field_types import VllmVersion
from dflash_tui.planning.methods import Method

if TYPE_CHECKING:
    from huggingface_hub import HfApi


_GIGABYTE = 1e9
_INDEX = "model.safetensors.index.json"
_TEMPLATE, _TOKENIZER_CONFIG, _TOKENIZER = "chat_template.jinja", "tokenizer_config.json", "tokenizer.json"
_CONFIG = msgspec.json.Decoder(dict[str, Any])
_UNREADABLE = (OSError, HubAccessError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


T = TypeVar("T", bound=msgspec.Struct)


class _Template(msgspec.Struct, frozen=True):
    template: str


class _Token(msgspec.Struct, frozen=True):
    content: str


class _TokenizerConfig(msgspec.Struct, frozen=True):
    """The fields read from tokenizer_config.json: one template or several named ones, and the special tokens."""

    chat_template: str | list[_Template] | None = None
    added_tokens_decoder: dict[str, _Token] = {}


class _WeightIndex(msgspec.Struct, frozen=True):
    weight_map: dict[str, str] = {}


class _Vocabulary(msgspec.Struct, frozen=True):
    vocab: dict[str, int] | list[tuple[str, float]] = {}


class _Tokenizer(msgspec.Struct, frozen=True):
    added_tokens: list[_Token] = []
    model: _Vocabulary = _Vocabulary()


untrusted_json.register_type(_TokenizerConfig)
untrusted_json.register_type(_Tokenizer)
untrusted_json.register_type(_WeightIndex)


async def look_up_checkpoint(name: str, revision: str = "main", *, is_served: bool = True) -> Checkpoint:
    """Return a model's configuration, size and whether it is gated; if it is served, also its template and tokens.

    Raises:
        DflashError: the model does not exist, may not be read, or has no config.json.
    """
    model = await model_hub.look_up_model(name, revision)
    config = await _read_config(model)
    if model.folder and model_hub.has_broken_index(Path(model.folder)):
        raise DflashError(
            f"{name} is not whole: its {_INDEX} cannot be read, or names files that are not there",
            hint="copy or download the model again",
        )
    size = model.total_bytes / _GIGABYTE if model.total_bytes else None
    if not is_served:
        return read_checkpoint(name, config, gated=model.gated, size_gb=size)
    about = await _read_part(model, _TOKENIZER_CONFIG, _TokenizerConfig)
    template = await _read_chat_template(model, about)
    tokens = frozenset(token.content for token in about.added_tokens_decoder.values()) or None
    tokens = (read_local_tokens(Path(model.folder)) if model.folder else None) or tokens
    return read_checkpoint(
        name,
        config,
        gated=model.gated,
        size_gb=size,
        chat_template=template,
        tokens=tokens,
        weight_names=frozenset((await _read_part(model, _INDEX, _WeightIndex)).weight_map),
    )


def read_local_tokens(folder: Path) -> frozenset[str] | None:
    """Return the vocabulary in a model's folder with special tokens; None if tokenizer.json cannot be read."""
    try:
        tokenizer = msgspec.json.decode((folder / _TOKENIZER).read_bytes(), type=_Tokenizer)
    except _UNREADABLE:
        return None
    vocabulary = tokenizer.model.vocab
    pieces = vocabulary if isinstance(vocabulary, dict) else (piece for piece, _ in vocabulary)
    return frozenset(pieces) | {token.content for token in tokenizer.added_tokens} or None


async def _read_config(model: ModelAvailability) -> dict[str, Any]:
    if not (model.folder or model.access.ok):
        raise DflashError(
            f"{model.repo} cannot be read: {model.access}",
            evidence=model.detail,
            hint=model_hub.advise_access(model),
        )
    try:
        # Its texts are written to a recipe file.
        return untrusted_json.decode_json(await _read_file(model, "config.json"), _CONFIG)
    except _UNREADABLE as error:
        do = "vLLM serves checkpoints with a config.json and safetensors; a GGUF repository has none"
        raise DflashError(f"{model.repo} has no config.json that can be read", evidence=str(error), hint=do) from None


async def _read_file(model: ModelAvailability, name: str) -> bytes:
    if model.folder:
        return (Path(model.folder) / name).read_bytes()
    return await model_hub.fetch_small_file(model.repo, model.commit or model.revision, name)


async def _read_part(model: ModelAvailability, name: str, kind: type[T]) -> T:
    if not (model.folder or name in {file.name for file in model.files}):
        return kind()
    try:
        return msgspec.json.decode(await _read_file(model, name), type=kind)
    except _UNREADABLE:
        return kind()


async def _read_chat_template(model: ModelAvailability, about: _TokenizerConfig) -> str | None:
    if model.folder or _TEMPLATE in {file.name for file in model.files}:
        try:
            return (await _read_file(model, _TEMPLATE)).decode()
        except _UNREADABLE:
            pass
    templates = about.chat_template
    return "\n".join(named.template for named in templates) if isinstance(templates, list) else templates


MOST_DRAFTERS = 12
"""The largest number of repositories whose config.json is fetched."""
# One answer of the hub, sorted by downloads; a popular model has thousands of quantized versions.
_MOST_LISTED = 1000
_QUANTIZED = "base_model:quantized:"
# Found in a name or a tag. The config.json decides: most assistants are not drafters.
_DRAFTS = re.compile(r"d-?flash|d-?spark|eagle|speculat|draft|assistant|mtp|medusa|hass\b")


class TreeDrafter(msgspec.Struct, frozen=True):
    """A drafter of a model, listed in the hub's model tree."""

    repo: str
    method: Method | None = None
    """How it drafts, by its config.json; None if that cannot be read."""
    oldest_vllm: VllmVersion | None = None
    """The first vLLM release that supports it; None if every release from 0.20.0 on does, or if unknown."""
    gated: bool = False
    """Whether its terms must be accepted."""


async def find_tree_drafters(model: str) -> list[TreeDrafter]:
    """Return the drafters of a repository and, if it is quantized, of the model that it was made from.

    The most downloaded come first, at most `MOST_DRAFTERS`. Nothing is cached.

    Raises:
        HubAccessError: the hub refuses access, may not be asked, or did not answer within ten seconds.
    """
    if model_hub.find_local_folder(model) or not model_hub.is_repository(model):
        return []
    try:
        async with asyncio.timeout(model_hub.TIMEOUT):
            candidates = await model_hub.ask_hub(partial(_list_candidates, model))
            drafters = await asyncio.gather(*(_read_drafter(name, gated=gated) for name, gated in candidates.items()))
    except TimeoutError:
        raise HubAccessError(Access.UNREACHABLE, f"no answer within {model_hub.TIMEOUT:.0f} s") from None
    return [drafter for drafter in drafters if drafter]


def _list_candidates(model: str, hub: HfApi) -> dict[str, bool]:
    """Return the repositories that may be drafters by their names and tags, and whether each is gated."""
    tags = hub.model_info(model, expand=["tags"], timeout=model_hub.TIMEOUT).tags or []
    bases = [model, *(tag.removeprefix(_QUANTIZED) for tag in tags if tag.startswith(_QUANTIZED))]
    found: dict[str, bool] = {}
    for base in bases[:2]:
        listed = hub.list_models(
            filter=f"base_model:{base}", sort="downloads", limit=_MOST_LISTED, expand=["tags", "gated"]
        )
        for other in listed:
            own_tags = (tag for tag in other.tags or () if ":" not in tag)
            words = " ".join([other.id.rpartition("/")[2], *own_tags]).lower()
            if other.id not in bases and "gguf" not in words and _DRAFTS.search(words):
                found.setdefault(other.id, bool(other.gated))
    return dict(itertools.islice(found.items(), MOST_DRAFTERS))


async def _read_drafter(name: str, *, gated: bool) -> TreeDrafter | None:
    """Return the drafter in a repository by its config.json; None if it is not a drafter or unknown."""
    try:
        config = _CONFIG.decode(await model_hub.fetch_small_file(name, "main", "config.json"))
    except HubAccessError as error:
        return TreeDrafter(name, gated=True) if gated and error.access is not Access.UNREACHABLE else None
    except msgspec.MsgspecError:
        return None
    kind = look_up_drafter(read_checkpoint(name, config))
    return TreeDrafter(name, kind.method, kind.since, gated) if kind else None
