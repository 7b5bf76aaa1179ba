"""Write the user's recipes: new ones, those derived from two models, and those from a file or address."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec
import yaml

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.common.secrets import looks_secret
from dflash_tui.engines import model_config, model_hub
from dflash_tui.launch import recipe_trust
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.planning.derivation.pair import DerivedPair, derive_pair, name_recipe, write_recipe_text
from dflash_tui.planning.methods import Method
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import (
    EngineSpec,
    HardwareLayer,
    Layer,
    PublishedFigures,
    Recipe,
    SetUp,
    Status,
)
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.planning.serve_flags import check_model_path

if TYPE_CHECKING:
    import httpx


_MOST_NAMES = 1000


def check_name(name: str) -> str:
    """Return `name`; raise UsageError if it is not a valid name for a user's recipe."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", name):
        raise UsageError(f"'{name}' is not a valid recipe name", hint="use lower case letters, digits, . _ and -")
    return name


def own_recipe_file(name: str) -> Path:
    """Return the path of the user's recipe of this name, whether it exists or not."""
    return paths.user_recipes_folder() / f"{name}.yaml"


def refuse_name(name: str, shipped: str = "", *, replace: bool = False) -> None:
    """Raise UsageError if the user's recipe of this name may not be written.

    Commands refer to shipped recipes by name; with `shipped`, their names are refused with that hint.
    """
    path = own_recipe_file(check_name(name))
    if shipped and name in recipe_loader.list_shipped_files():
        raise UsageError(f"a recipe called '{name}' is shipped", hint=shipped)
    if path.exists() and not replace:
        raise UsageError(f"{path} already exists", hint=f"edit it, or print it with dflash-tui recipes show {name}")


def add_own_recipe(name: str, text: str, schema: str = "") -> Path:
    """Write a recipe into the user's folder, in place of one of that name; return its path.

    The JSON `schema` of recipes is written beside it and named in its first line, for editors.
    """
    path = own_recipe_file(name)
    private_files.ensure_private_folder(path.parent)
    if schema:
        schema_file = path.parent / "recipe.schema.json"
        private_files.replace_private_file(schema_file, schema.encode())
        first = f"# yaml-language-server: $schema={schema_file.name}\n"
        text = re.sub(r"\A(# yaml-language-server:[^\n]*\n)?", first, text)
    private_files.replace_private_file(path, text.encode())
    return path


def flatten_recipe(
    resolved: ResolvedRecipe,
    plan: Plan,
    request: LaunchRequest,
    *,
    title: str,
    why: str,
    expected: tuple[PublishedFigures, ...] = (),
) -> Recipe:
    """Return a resolved recipe as one without layers, holding the settings of profile, hardware and user itself."""
    base = resolved.recipe
    layer: dict[str, Any] = {name: getattr(resolved, name) for name in Layer.__struct_fields__}
    layer |= {
        "engine": _name_engine(request, resolved),
        "hosts": resolved.hosts if resolved.hosts > 1 else None,
        "num_speculative_tokens": plan.num_speculative_tokens,
        "mode": plan.mode,
        "modes": {},
    }
    return Recipe(
        **layer,
        title=title,
        status=Status.EXPERIMENTAL,
        why=why,
        link=base.link,
        synthetic=resolved.synthetic,
        build=base.build,
        port=base.port,
        bench_scale=base.bench_scale,
        set_up=SetUp.PUBLISHED,
        method=resolved.method,
        restart=resolved.restart,
        failures=base.failures,
        hardware={} if base.for_cpu else {resolved.hardware: HardwareLayer(expected=expected)},
    )


def _name_engine(request: LaunchRequest, resolved: ResolvedRecipe) -> EngineSpec:
    """Return the engine for the recipe; the recipe's or the table's replaces an environment that the user chose."""
    chosen, own = resolved.engine, resolved.recipe.engine
    if not request.engine:
        return chosen
    if own and (own.vllm, own.distribution) == (chosen.vllm, chosen.distribution):
        return own
    return recipe_loader.engine_for_release(chosen.vllm) if chosen.distribution == "vllm" else chosen


def keep_recipe(recipe: Recipe, name: str, comments: Sequence[str], *, overwrite: bool = False) -> Path:
    """Write a recipe made here, with comments above it, and trust it; a taken name gets a number."""
    path = own_recipe_file(check_name(name))
    private_files.ensure_private_folder(path.parent)
    if not overwrite:
        numbered = (path.with_name(f"{name}-{number}.yaml") for number in range(2, _MOST_NAMES))
        path = next(each for each in (path, *numbered) if not each.exists() and not each.is_symlink())
    body = yaml.safe_dump(msgspec.to_builtins(recipe), sort_keys=False, allow_unicode=True, width=120)
    text = ("".join(f"# {clean_line(line)}\n" for line in comments) + body).encode()
    with tempfile.TemporaryDirectory() as scratch:
        draft = Path(scratch) / path.name
        private_files.write_private_file(draft, text)
        loaded = recipe_loader.load_recipe(draft)
    private_files.replace_private_file(path, text)
    recipe_trust.trust_contents(loaded)
    return path


def keep_setting(planned: PlannedLaunch) -> Path:
    """Write a trusted launch's settings as a recipe of the user's; return its path."""
    resolved, plan = planned.resolved, planned.plan
    recipe_trust.require_trust(recipe_trust.list_launched(resolved.recipe, [plan]))
    command = plan.relaunch_request.to_command()
    kept = flatten_recipe(
        resolved,
        plan,
        plan.relaunch_request,
        title=f"{resolved.recipe.title}, as chosen here",
        why=f"kept from {command}",
    )
    return keep_recipe(kept, f"{resolved.recipe.name}-kept", [f"Kept from {command}"])


# The only shipped recipe with an engine for the CPU.
_CPU_RECIPE = "demo-cpu"


async def derive_from_models(
    target: str, drafter: str | None, method: Method | None, tokens: int | None = None
) -> DerivedPair:
    """Return how vLLM serves two models, repositories of the hub or folders; `tokens` is as for `derive_pair`.

    A folder's path is made absolute, since a server starts in the folder of its run.
    """
    for name in filter(None, (target, drafter)):
        check_model_path(name)
    target, drafter = (str(model_hub.find_local_folder(name or "") or name or "") for name in (target, drafter))
    lookups = [model_config.look_up_checkpoint(target)]
    lookups += [model_config.look_up_checkpoint(drafter, is_served=False)] if drafter else []
    checkpoints = await asyncio.gather(*lookups)
    return derive_pair(checkpoints[0], checkpoints[1] if drafter else None, method, tokens)


async def add_recipe_of_models(target: str, drafter: str, method: Method | None, schema: str) -> str:
    """Write the user a recipe derived from two models; return its name.

    An existing recipe of that name is kept.
    """
    derived = await derive_from_models(target, drafter or None, method)
    name = name_recipe(derived)
    if name not in recipe_loader.list_recipe_files():
        path = add_own_recipe(name, write_recipe_text(derived), schema)
        recipe_trust.trust_contents(recipe_loader.load_recipe(path))
    return name


def write_derived_recipe(derived: DerivedPair, *, on_cpu: bool = False) -> Path:
    """Write a pair's recipe into the folder of derived recipes, replacing an earlier one; return its path."""
    cpu = recipe_loader.find_recipe(_CPU_RECIPE) if on_cpu else None
    path = paths.derived_recipes_folder() / f"{name_recipe(derived)}.yaml"
    private_files.ensure_private_folder(path.parent)
    private_files.replace_private_file(path, write_recipe_text(derived, cpu).encode())
    recipe_trust.trust_contents(recipe_loader.load_recipe(path))
    return path


_TIMEOUT = 20.0
_REDIRECTS = 5
_HEADERS = {"Accept-Encoding": "identity"}
_TRANSPORT: httpx.BaseTransport | None = None  # None is httpx's own; tests replace it


def read_named_file(place: str, limit: int) -> tuple[str, bytes]:
    """Return the stem of a path or https address, and the file's content; raise DflashError if it cannot be read."""
    if "://" not in place:
        path = paths.expand_home(place)
        try:
            return path.stem, private_files.read_file(path, limit)
        except OSError as error:
            raise UsageError(f"{place} cannot be read", evidence=error.strerror or str(error)) from None
    _refuse_address(place)
    name = PurePosixPath(unquote(urlsplit(place).path)).stem
    return name, _fetch(place, limit)


def _refuse_address(address: str) -> None:
    try:
        parts = urlsplit(address)
        host, user, _ = parts.hostname, parts.username, parts.port
    except ValueError as error:
        evidence = "" if "@" in address else str(error)  # it may quote half of a password with a slash
        raise UsageError("not an address", evidence=evidence) from None
    if parts.scheme != "https":
        raise UsageError(
            f"{parts.scheme}:// is not supported: others could change the file in transit",
            hint="an https:// address, or the path of a file",
        )
    if user is not None or looks_secret(address):
        raise UsageError("the address holds a secret", hint="download the file yourself, and name its path")
    if not host:
        raise UsageError("not an address", evidence="it names no host")


def _fetch(address: str, limit: int) -> bytes:
    import httpx

    def refuse(request: httpx.Request) -> None:  # also called for redirects
        _refuse_address(str(request.url))

    body = bytearray()
    try:
        with (
            httpx.Client(
                timeout=_TIMEOUT,
                transport=_TRANSPORT,
                headers=_HEADERS,
                follow_redirects=True,
                max_redirects=_REDIRECTS,
                event_hooks={"request": [refuse]},
            ) as client,
            client.stream("GET", address) as response,
        ):
            if not response.is_success:
                raise DflashError("the file cannot be fetched", evidence=f"HTTP {response.status_code}")
            if response.headers.get("Content-Type", "").startswith("text/html"):
                raise UsageError("the address is that of a web page", hint="name the address of the file itself (raw)")
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > limit:
                    raise UsageError(f"the file is larger than {limit >> 10} KiB")
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
        raise DflashError("the file cannot be fetched", evidence=f"{type(error).__name__}: {error}") from None
    return bytes(body)
