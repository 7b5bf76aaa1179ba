"""Derive from two checkpoints how vLLM serves them: method, drafts per step, oldest release, flags. Pure.

The rules come from vLLM 0.20.0 to 0.33.0 (config/speculative.py, the registries) and the published commands.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec
import yaml
from packaging.version import Version

from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.common.yaml_loader import load_yaml
from dflash_tui.machine.hardware import SM_12X, Hardware
from dflash_tui.planning.derivation.checkpoint import Checkpoint, Precision
from dflash_tui.planning.field_types import VllmVersion
from dflash_tui.planning.methods import FACTS, DrafterUse, Method
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.planning.recipes.recipe_loader import load_releases

_ARCHITECTURES = paths.PACKAGE_ROOT / "architectures.yaml"


class TargetArchitecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How vLLM treats targets of one architecture."""

    since: VllmVersion | None = None
    """The first release that serves it; None for 0.20.0 or older."""
    states: VllmVersion | None = None
    """The first release that passes its hidden states to a drafter; None if every release that serves it does."""
    hands_states: bool = True
    """Whether any release up to 0.33.0 passes its hidden states to a drafter."""
    flags: dict[str, Any] = {}
    """Flags of the published commands, for every machine."""


class DrafterArchitecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How vLLM treats drafters of one architecture, model_type or speculators kind."""

    method: Method
    since: VllmVersion | None = None
    """The first release that supports it; None for 0.20.0 or older."""
    speculation: dict[str, Any] = {}
    """Keys of the speculative config that the drafter needs to draft as it was trained."""


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values from a model's card."""

    tokens: int | None = None
    """Tokens that its MTP head drafts per step; None if the card does not say."""
    parsers: dict[str, str] = {}
    """The parsers to serve it with: flag -> parser."""


class ArchitectureTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shipped table of architectures, keyed by the names in config.json."""

    targets: dict[str, TargetArchitecture]
    drafters: dict[str, DrafterArchitecture]
    model_types: dict[str, DrafterArchitecture]
    speculators: dict[str, DrafterArchitecture]
    cards: dict[str, Card]
    """Keyed by the model's name in lower case, without its precision."""


register_type(ArchitectureTable)


# The precision at the end of a model's name.
_PRECISION = re.compile(
    r"[-_.](?:quantized[-_.])?(?:fp8|nvfp4|mxfp4|int4|int8|awq|gptq|w4a16|w8a8|bf16|fp16)"
    r"(?:[-_.](?:dynamic|block|static|autoround|int4|4bit|8bit|w4a4|ct))?$"
)


@cache
def load_architectures() -> ArchitectureTable:
    """Return the shipped table."""
    return load_yaml(_ARCHITECTURES, ArchitectureTable)


def find_card(target: Checkpoint) -> Card:
    """Return the target's card; an empty one if the table has none."""
    return load_architectures().cards.get(_PRECISION.sub("", _last_part(target.name).lower()), Card())


_GB10 = (Hardware.GB10,)
_SM_90 = (Hardware.H100, Hardware.H200)
_FP8_CACHE = ("Qwen3_5", "Qwen4Exp", "NemotronH")
# For the target only: vLLM chooses the drafter's backend, since not every backend drafts whole blocks.
_FLASHINFER = {"kv-cache-dtype": "fp8", "attention-backend": "flashinfer"}
_NO_DEEP_GEMM = {"VLLM_USE_DEEP_GEMM": "0", "VLLM_MOE_USE_DEEP_GEMM": "0"}


_PARSER_FORMS = paths.PACKAGE_ROOT / "parser_forms.yaml"
# Flag of each kind of parser -> (what it parses, a word that every template with it contains).
SUBJECTS = {"tool-call-parser": ("tool calls", "tool"), "reasoning-parser": ("thoughts", "think")}


class _Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A format of tool calls or thoughts, and the parser that reads it."""

    parser: str
    marks: tuple[str, ...]
    tokens: tuple[str, ...] = ()
    since: str = "0"


def choose_parser(flag: str, target: Checkpoint, vllm: str) -> tuple[str, str]:
    """Return the parser of release `vllm` for a flag that reads what `target` writes, empty if none does, and why."""
    subject, word = SUBJECTS[flag]
    if target.chat_template is None:
        return "", "its chat template is not known"
    card = find_card(target).parsers.get(flag)
    template = target.chat_template.replace('\\"', '"').replace("\\n", "\n")
    form = next((form for form in _load_forms()[flag] if all(mark in template for mark in form.marks)), None)
    if form is None and card and not (target.tokens and find_missing_tokens(flag, card, target.tokens)):
        return card, f"the card of {_last_part(target.name)} names it"
    if form is None and word not in template.lower():
        return "", f"its chat template has no {subject}"
    if form is None or Version(vllm) < Version(form.since):
        return "", f"its chat template has {subject} in a form that no known parser of vLLM {vllm} reads"
    if target.tokens is not None and (missing := find_missing_tokens(flag, form.parser, target.tokens)):
        return "", f"{form.parser} needs {' and '.join(missing)}, which its tokenizer does not have"
    return form.parser, f"its chat template has {subject} in that form"


def find_missing_tokens(flag: str, parser: str, tokens: Collection[str]) -> list[str]:
    """Return the tokens that `parser` requires and the tokenizer lacks; none for an unknown parser."""
    form = next((form for form in _load_forms()[flag] if form.parser == parser), None)
    return [token for token in form.tokens if token not in tokens] if form else []


@cache
def _load_forms() -> dict[str, list[_Form]]:
    return load_yaml(_PARSER_FORMS, dict[str, list[_Form]])


# The first releases that pass a DFlash drafter the right layers and do not corrupt its cached prefixes; with sliding
# windows; with sliding and full attention mixed.
_DFLASH_RIGHT, _SLIDING_RIGHT, _MIXED_RIGHT = "0.23.0", "0.25.0", "0.26.0"
_IN_BLOCKS = frozenset({Method.DFLASH, Method.DSPARK})
_FROM_STATES = _IN_BLOCKS | {Method.EAGLE3}
# In the order in which vLLM tests names.
NAME_PARTS = {"eagle-": Method.EAGLE, "eagle3": Method.EAGLE3, "dflash": Method.DFLASH, "dspark": Method.DSPARK}
_PUBLISHED = "as the published commands"
_ASSISTANT_TOKENS = 4
_LAST_RELEASES = {"bitsandbytes": Version("0.27.1")}
_FOLDERS = ("/", ".", "~")
_HEAD_NAME = re.compile(r"(?i)eagle|dflash|dspark|draft|mtp|medusa|domino|jetspec")
_BATCH_FLAGS, _REMOTE = ("max-num-batched-tokens", "max-num-seqs"), "trust-remote-code"
_BATCHED_TOKENS, _SEQUENCES = 8192, 256
_PUBLISHED_TOKENS = {
    Method.MTP: (3, _PUBLISHED),
    Method.EAGLE3: (3, _PUBLISHED),
    Method.EAGLE: (3, _PUBLISHED),
    Method.DRAFT_MODEL: (3, "a few: each costs one run of the drafter"),
}


class DerivedFact(NamedTuple):
    """A derived value, and the rule that gave it."""

    name: str
    value: str
    rule: str


class DerivedPair(NamedTuple):
    """How vLLM serves a pair."""

    target: Checkpoint
    drafter: Checkpoint | None
    method: Method
    tokens: int
    oldest_vllm: Version | None
    """The first release that serves it correctly; None for 0.20.0 or older."""
    newest_vllm: Version | None
    """The last release that serves it; None if the newest one does."""
    flags: dict[str, Any]
    speculation: dict[str, Any]
    """Further keys of the speculative config."""
    hardware: dict[str, dict[str, Any]]
    """Changes for classes of machines: the `hardware` part of a recipe."""
    facts: tuple[DerivedFact, ...]
    warnings: tuple[str, ...]


def derive_pair(
    target: Checkpoint, drafter: Checkpoint | None, method: Method | None = None, tokens: int | None = None
) -> DerivedPair:
    """Return how vLLM serves `target` with `drafter`, or without one by the target's own head or no drafter at all.

    `method` and `tokens` (drafts per step) are the user's; `tokens` is used only if no rule gives a number. Raise
    UsageError if the pair cannot be served, or something needed for it is unknown.
    """
    return _Derivation(target, drafter, method).derive(tokens)


class _Derivation:
    """A pair being derived, with the facts and warnings so far."""

    def __init__(self, target: Checkpoint, drafter: Checkpoint | None, method: Method | None) -> None:
        self.target, self.drafter = target, drafter
        self.facts: list[DerivedFact] = []
        self.warnings: list[str] = []
        self.architecture = load_architectures().targets.get(target.architecture)
        self.kind = look_up_drafter(drafter) if drafter else None
        if method:
            self.add_fact("method", method.value, "asked for")
        self.method = method or self.find_method()

    def add_fact(self, name: str, value: str, rule: str) -> None:
        self.facts.append(DerivedFact(name, value, rule))

    def derive(self, asked_tokens: int | None) -> DerivedPair:
        target, drafter, method = self.target, self.drafter, self.method
        if misfit := next(_find_misfits(target, drafter, method), ""):
            name = f"{target.name} with {drafter.name}" if drafter else target.name
            hint = "choose a drafter that was made for this target, or another --method"
            raise UsageError(f"{name}: {misfit}", hint=hint)
        tokens = self.find_tokens(asked_tokens)
        oldest = self.find_release()
        newest = self.find_last_release(oldest)
        flags = self.find_flags(str(newest or [*load_releases()][-1])) | self.find_batch(tokens)
        speculation = self.find_speculation()
        hardware = self.find_hardware_layers()
        block = (drafter.block_size if drafter else target.dspark_block) if method in _IN_BLOCKS else None
        if asked_tokens and block and asked_tokens != tokens:
            misfit = f"{asked_tokens} drafts per step do not fit the drafter's block of {block}"
            self.warnings.append(f"{misfit}: it was trained for {tokens}")
        if drafter and _names_other_target(target, drafter):
            self.warnings.append(f"the drafter was made for {drafter.verifier}; for others fewer drafts are accepted")
        if self.architecture is None:
            name = target.architecture or "its architecture"
            self.warnings.append(f"dflash-tui does not know {name}; vLLM may still serve it")
        notes = tuple(self.facts), tuple(self.warnings)
        return DerivedPair(target, drafter, method, tokens, oldest, newest, flags, speculation, hardware, *notes)

    def find_method(self) -> Method:
        target, drafter = self.target, self.drafter
        if drafter is None:
            if target.dspark_block:
                self.add_fact("method", "dspark", "the target's checkpoint has a DSpark drafter in it")
                return Method.DSPARK
            if not target.head_layers:
                raise UsageError(
                    f"{target.name} has no head that drafts",
                    hint="name a drafter (--drafter NAME), or a method without one: --method ngram, --method none",
                )
            self.add_fact("method", "mtp", f"the target has {target.head_layers} layer(s) that draft")
            return Method.MTP
        if kind := _classify_drafter(drafter):
            method, what = kind
            self.add_fact("method", method.value, f"the drafter is {what}")
            return method
        for part, method in NAME_PARTS.items():
            if part in drafter.name.lower():
                self.add_fact("method", method.value, f"the drafter's name contains '{part}', as vLLM reads it")
                self.warnings.append(f"the method is a guess from the name of {drafter.name}")
                return method
        self.add_fact("method", "draft_model", "the drafter is a complete model")
        return Method.DRAFT_MODEL

    def find_tokens(self, asked: int | None) -> int:
        counted = _count_tokens(self.target, self.drafter, self.method) or (asked and (asked, "asked for"))
        if not counted:
            what = f"{self.method}: how many tokens are drafted per step is not known"
            raise UsageError(what, hint="plan and up take --num-speculative-tokens N")
        self.add_fact("drafts", f"{counted[0]} per step", counted[1])
        return counted[0]

    def find_release(self) -> Version | None:
        reasons = [(Version(since), why) for since, why in self.list_release_reasons() if since]
        if not reasons:
            return None
        least, why = max(reasons, key=lambda reason: reason[0])
        self.add_fact("vLLM", f">= {least}", why)
        return least

    def list_release_reasons(self) -> Iterator[tuple[str | None, str]]:
        target, drafter, method = self.target, self.drafter, self.method
        if self.architecture:
            yield self.architecture.since, f"the first release that serves {target.architecture}"
            if method in _FROM_STATES:
                why = f"the first release that gives drafters the hidden states of {target.architecture}"
                yield self.architecture.states, why
        if since := FACTS[method].since:
            yield since, f"the first release with the method {method}"
        if drafter and self.kind:
            name = drafter.speculators or drafter.architecture or drafter.model_type
            yield self.kind.since, f"the first release with {name}"
        if method is Method.DFLASH:
            yield _DFLASH_RIGHT, "earlier releases give a DFlash drafter wrong layers, or corrupt its input"
            if drafter and drafter.slides:
                yield _SLIDING_RIGHT, "earlier releases ignore the sliding windows of a DFlash drafter"
            if drafter and drafter.is_mixed:
                yield _MIXED_RIGHT, "the first release that runs drafters with sliding and full attention correctly"

    def find_last_release(self, oldest: Version | None) -> Version | None:
        """Return the last release that reads the target's weights; None if the newest one does."""
        quantization = self.target.quantization
        last = _LAST_RELEASES.get(quantization)
        if last is None:
            return None
        if oldest and oldest > last:
            what = f"{self.target.name}: vLLM reads {quantization} up to {last}, and this pair needs {oldest}"
            raise UsageError(what, hint="choose another quantization of the target")
        self.add_fact("vLLM", f"<= {last}", f"the last release that reads {quantization}")
        return last

    def find_batch(self, tokens: int) -> dict[str, Any]:
        """Return batch limits that fit the drafts of all sequences, for methods that draft in blocks.

        The defaults of a GPU below 70 GiB do not fit 15 drafts per sequence, and vLLM before 0.28 then refuses to
        start.
        """
        if self.method not in _IN_BLOCKS:
            return {}
        sequences = min(_SEQUENCES, (_BATCHED_TOKENS - 1) // (1 + tokens))
        rule = f"vLLM before 0.28 starts only where {sequences} sequences of {1 + tokens} tokens fit into a batch"
        self.add_fact("batch", f"{_BATCHED_TOKENS} tokens", rule)
        return dict(zip(_BATCH_FLAGS, (_BATCHED_TOKENS, sequences), strict=True))

    def find_speculation(self) -> dict[str, Any]:
        if self.drafter is None or self.kind is None:
            return {}
        rule = f"as drafters of the kind {self.drafter.speculators or self.drafter.architecture} were trained"
        for key, value in self.kind.speculation.items():
            self.add_fact("drafts", f"{key}={str(value).lower()}", rule)
        return self.kind.speculation

    def find_flags(self, vllm: str) -> dict[str, Any]:
        flags: dict[str, Any] = dict(self.architecture.flags) if self.architecture else {}
        if flags:
            self.add_fact("flags", ", ".join(flags), f"the published commands of {self.target.architecture}")
        for flag in SUBJECTS:
            parser, why = choose_parser(flag, self.target, vllm)
            self.add_fact("flags", f"{flag} {parser}" if parser else f"no {flag}", why)
            if parser and flag == "tool-call-parser":
                flags["enable-auto-tool-choice"] = True
            flags |= {flag: parser} if parser else {}
        if any(model and model.remote_code for model in (self.target, self.drafter)) and _REMOTE not in flags:
            self.warnings.append(f"a config.json names code of its own; if vLLM asks for it: --set {_REMOTE}=true")
        return flags

    def find_hardware_layers(self) -> dict[str, dict[str, Any]]:
        layers: dict[str, dict[str, Any]] = {}
        for classes, part, values, why in self.list_class_rules():
            pairs = [f"{key}={value}" for key, value in values.items()] if isinstance(values, dict) else ["a warning"]
            self.add_fact("machine", f"{', '.join(kind.value for kind in classes)}: {', '.join(pairs)}", why)
            for hardware in classes:
                layer = layers.setdefault(hardware.value, {})
                if isinstance(values, list):
                    layer[part] = [*layer.get(part, []), *values]
                else:
                    layer[part] = layer.get(part, {}) | values
        return layers

    def list_class_rules(self) -> Iterator[tuple[tuple[Hardware, ...], str, dict[str, Any] | list[str], str]]:
        """Yield per rule: classes of machines, the part of their layer, what is added to it, and why."""
        target = self.target
        if target.architecture.startswith(_FP8_CACHE):
            yield _GB10, "flags", _FLASHINFER, f"the published commands of {target.architecture} for a GB10"
        if target.precision is Precision.NVFP4:
            if target.experts:
                yield _GB10, "flags", {"moe-backend": "marlin"}, "NVFP4 experts on a GB10, as NVIDIA publishes"
                if self.method is Method.MTP and self.drafter is None:
                    yield _GB10, "speculation", {"moe_backend": "triton"}, "the experts of an MTP head there"
            says = "NVFP4 runs as W4A16 on an H100 or H200, with 16-bit arithmetic; FP8 is native there."
            yield _SM_90, "warnings", [says], "sm_90 has no FP4 arithmetic"
        if target.precision is Precision.FP8_BLOCKS and not target.architecture.startswith("Qwen3_5"):
            yield tuple(sorted(SM_12X)), "env", _NO_DEEP_GEMM, "FP8 in blocks on sm_12x (vllm#51884, #54125)"


def look_up_drafter(drafter: Checkpoint) -> DrafterArchitecture | None:
    """Return how vLLM treats a drafter by its config.json; None if it is an ordinary model."""
    table = load_architectures()
    return (
        table.speculators.get(drafter.speculators)
        or table.model_types.get(drafter.model_type)
        or table.drafters.get(drafter.architecture)
    )


def _classify_drafter(drafter: Checkpoint) -> tuple[Method, str] | None:
    """Return a drafter's method and the evidence for it; None if it is an ordinary model.

    An EAGLE-3 head laid out as a Llama has one layer and a draft vocabulary; vLLM renames its architecture.
    """
    if known := look_up_drafter(drafter):
        name = drafter.speculators or drafter.architecture or drafter.model_type
        return known.method, f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"
    layers = drafter.shape.num_hidden_layers if drafter.shape else None
    if drafter.draft_vocab is not None and layers == 1 and not _is_unknown_head(drafter):
        return Method.EAGLE3, f"an EAGLE-3 head: one layer, {drafter.draft_vocab} tokens to draft (draft_vocab_size)"
    return None


def _find_misfits(target: Checkpoint, drafter: Checkpoint | None, method: Method) -> Iterator[str]:
    use, architecture = FACTS[method].drafter, load_architectures().targets.get(target.architecture)
    if use is DrafterUse.REQUIRED and drafter is None:
        yield f"{method} needs a drafter"
    if use is DrafterUse.NEVER and drafter is not None:
        yield f"{method} takes no drafter"
    if method is Method.MTP and drafter is None and not target.head_layers:
        yield "the target has no head that drafts (MTP)"
    if method is Method.MTP and drafter is None and target.head_layers and target.has_mtp_weights is False:
        yield "this checkpoint ships no MTP head: its config.json names one, and its weight index has no tensors of it"
    if method is Method.DSPARK and drafter is None and not target.dspark_block:
        yield "the target has no DSpark drafter in it, and none is named"
    if method in _FROM_STATES and architecture and not architecture.hands_states:
        yield f"vLLM up to 0.33.0 gives no hidden states of {target.architecture} to a drafter, which {method} needs"
    if drafter is not None:
        yield from _find_drafter_misfits(target, drafter, method)


def _find_drafter_misfits(target: Checkpoint, drafter: Checkpoint, method: Method) -> Iterator[str]:
    kind = _classify_drafter(drafter)
    if kind and kind[0] is not method:
        yield f"the drafter is {kind[1]}, for {kind[0]}: with {method} it does not start, or no draft is accepted"
    elif kind is None and _is_unknown_head(drafter):
        yield f"vLLM up to {[*load_releases()][-1]} does not know the drafter's architecture, {drafter.architecture}"
    elif kind is None and drafter.architecture == target.architecture != "" and method is not Method.DRAFT_MODEL:
        yield f"the drafter is a {target.architecture} like the target, no drafter for {method}"
    if _is_of_other_family(target, drafter):
        yield f"the drafter was made for a {drafter.verifier_architecture}, and the target is a {target.architecture}"
    if _names_other_target(target, drafter) and not target.name.startswith(_FOLDERS):
        yield f"the drafter was made for {drafter.verifier}; for a model made from that one, give its folder's path"
    if method is Method.DFLASH and drafter.block_size is None and drafter.speculative_tokens is None:
        yield "the drafter's config.json names no block_size"
    if method is Method.DFLASH and drafter.mask_token is None:
        yield "the drafter's config.json names no mask_token_id, without which vLLM does not start it"
    yield from _find_misshapes(target, drafter, method)


def _is_unknown_head(drafter: Checkpoint) -> bool:
    """Whether the drafter's architecture is named like a draft head and vLLM does not know it."""
    return bool(_HEAD_NAME.search(drafter.architecture)) and drafter.architecture not in load_architectures().targets


def _is_of_other_family(target: Checkpoint, drafter: Checkpoint) -> bool:
    """Whether the architectures differ in more than their suffix (`ForCausalLM`, `ForConditionalGeneration`)."""
    families = {name.partition("For")[0] for name in (target.architecture, drafter.verifier_architecture) if name}
    return len(families) > 1


def _names_other_target(target: Checkpoint, drafter: Checkpoint) -> bool:
    """Whether the drafter names another target; a precision suffix on either name does not count."""
    ours, theirs = (name.rstrip("/").rpartition("/")[2].lower() for name in (target.name, drafter.verifier))
    return bool(theirs) and ours not in theirs and theirs not in ours


def _find_misshapes(target: Checkpoint, drafter: Checkpoint, method: Method) -> Iterator[str]:
    ours, theirs = target.shape, drafter.shape
    if ours is None or theirs is None:
        return
    layers, last = ours.num_hidden_layers, drafter.last_layer_id
    if method in _FROM_STATES and last is not None and layers and last > layers:
        yield f"the drafter reads layer {last} of a target that has {layers}"
    wide = drafter.target_hidden or theirs.hidden_size
    if method is Method.DFLASH and ours.hidden_size and wide and wide != ours.hidden_size:
        yield f"the drafter reads states of width {wide}, and the target's are {ours.hidden_size}"
    mine, its = ours.vocab_size, theirs.vocab_size
    if method is Method.DRAFT_MODEL and mine and its and mine != its:
        across = "which vLLM 0.25 or newer accepts only with use_heterogeneous_vocab in a recipe's `speculation`"
        yield f"the drafter's vocabulary has {its} tokens, the target's {mine}, {across}"
    elif mine and its and its < mine and drafter.draft_vocab is None:
        yield f"the drafter's vocabulary has {its} tokens, the target's {mine}"


def _count_tokens(target: Checkpoint, drafter: Checkpoint | None, method: Method) -> tuple[int, str] | None:
    """Return the drafts per step and the rule; None if no rule applies."""
    if drafter and drafter.speculative_tokens:
        return drafter.speculative_tokens, "the drafter's own config asks for it"
    if drafter and drafter.block_size and method in _IN_BLOCKS:
        whole = drafter.anchored or method is Method.DSPARK
        exception = "" if whole else ", of which one is given"
        tokens = drafter.block_size if whole else drafter.block_size - 1
        return max(1, tokens), f"its block holds {drafter.block_size} tokens{exception}"
    if method is Method.DSPARK and drafter is None and target.dspark_block:
        return target.dspark_block, f"the block of the target's own drafter holds {target.dspark_block}"
    if method is Method.MTP and drafter is None:
        layers, published = target.head_layers, find_card(target).tokens
        if published or layers > 1:
            rule = f"the card of {_last_part(target.name)} says so" if published else f"the head has {layers} layers"
            return published or layers, rule
    if method in _PUBLISHED_TOKENS:
        tokens, rule = _PUBLISHED_TOKENS[method]
        return (_ASSISTANT_TOKENS if method is Method.MTP and drafter else tokens), rule
    default = FACTS[method].default_tokens
    return None if default is None else (default, "vLLM's default")


_WHY = "Derived from the models' config.json by rules; not run yet."
_LONGEST_NAME = 60


def name_recipe(pair: DerivedPair) -> str:
    """Return the name of the pair's recipe: target and drafter, or target and method."""
    target, drafter = _last_part(pair.target.name), _last_part(pair.drafter.name) if pair.drafter else ""
    said_twice = drafter.lower().startswith(target.lower()) and len(drafter) > len(target)
    words = [drafter] if said_twice else [target, drafter or pair.method.value]
    return re.sub(r"[^a-z0-9._-]+", "-", "-".join(words).lower()).strip("-._")[:_LONGEST_NAME] or "derived"


def write_recipe_text(pair: DerivedPair, cpu: Recipe | None = None) -> str:
    """Return the pair's recipe as YAML: for a GPU, or with engine, environment and patches of the recipe `cpu`."""
    lines = [f"# {fact.name}: {fact.value} ({fact.rule})" for fact in pair.facts]
    head = "# Derived by dflash-tui from two config.json. recipes/README.md explains the keys.\n"
    mapping = _build_mapping(pair)
    if cpu:  # its batches are small, and its first run of one is slow
        flags = {name: value for name, value in pair.flags.items() if name not in _BATCH_FLAGS}
        parts: dict[str, Any] = msgspec.to_builtins(cpu)
        mapping |= {name: parts[name] for name in ("engine", "env", "patches") if parts.get(name)}
        mapping |= {"mode": "eager", "flags": flags}
    body = yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True, width=110)
    return head + "\n".join(lines) + "\n" + body


def _build_mapping(pair: DerivedPair) -> dict[str, Any]:
    target, drafter, is_dflash = pair.target, pair.drafter, pair.method is Method.DFLASH
    name, newest = _last_part(target.name), [*load_releases()][-1]
    served = {"served_name": name.lower(), **_describe(target), "quantization": target.quantization}
    drafts = {"max_tokens": pair.tokens if is_dflash else None}
    recipe: dict[str, Any] = {
        "title": f"{name} with {_last_part(drafter.name) if drafter else pair.method}",
        "status": "experimental",
        "why": _WHY,
        "target": _drop_empty({"model": target.name} | served),
        "drafter": drafter and _drop_empty({"model": drafter.name} | _describe(drafter) | drafts),
        "method": None if is_dflash else pair.method.value,
        "num_speculative_tokens": pair.tokens,
        "speculation": pair.speculation,
        "oldest_vllm": pair.oldest_vllm and str(pair.oldest_vllm),
        "mode": "compile",
        "flags": pair.flags,
        "engine": {"vllm": str(pair.newest_vllm or newest)},
        "warnings": [*pair.warnings],
        "hardware": pair.hardware,
    }
    return _drop_empty(recipe)


def _describe(model: Checkpoint) -> dict[str, Any]:
    size = round(model.size_gb, 3) if model.size_gb else None
    shape = {name: value for name, value in msgspec.to_builtins(model.shape).items() if value} if model.shape else {}
    return {"size_gb": size or None, "gated": model.gated, "config": shape}


def _drop_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, "", {}, [])}


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2] or name
