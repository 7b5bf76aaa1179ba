"""The flags of `vllm serve` of a published release, read from its sources without running them.

`python -m tests.support.vllm_flags` writes the names of the last releases and of those of seeds to `vllm_flags.yaml`.
"""

import ast
import re
import textwrap
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

from dflash_tui.planning import serve_flags
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import iterate_layers
from tests.support import wheels
from tests.support.source_trees import parse_source

_SOURCES = re.compile(r"vllm/(engine/arg_utils|entrypoints/.*cli_args|entrypoints/cli/serve|utils/argparse_utils)\.py")


def read_flags(version: str) -> set[str]:
    """Return the flags without dashes: what is added by name, and the fields of the front end's arguments."""
    with wheels.opened("vllm", version) as wheel:
        sources = {name: wheel.read(name).decode() for name in wheel.namelist() if _SOURCES.fullmatch(name)}
    return {
        flag for name, text in sources.items() for flag in _list_flags(parse_source(text), fields="cli_args" in name)
    }


def _list_flags(tree: ast.Module, *, fields: bool) -> set[str]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    added = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"]
    words = [word.value for call in added for word in call.args if isinstance(word, ast.Constant)]
    flags = {word.removeprefix("--") for word in words if isinstance(word, str) and word.startswith("--")}
    for node in tree.body if fields else []:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Args"):
            names = [line.target for line in node.body if isinstance(line, ast.AnnAssign)]
            flags |= {name.id.replace("_", "-") for name in names if isinstance(name, ast.Name)}
    return flags


def list_listed() -> list[str]:
    """Return the releases whose flags are shipped: the last eight, and older ones that a profile of a recipe names."""
    recipes, _ = recipe_loader.load_all_recipes()
    named = {layer.engine.vllm for recipe in recipes.values() for _, layer in iterate_layers(recipe) if layer.engine}
    table = list(recipe_loader.load_releases())
    return [version for version in table if version in {*table[-8:], *named}]


def read_all_flags() -> dict[str, set[str]]:
    """Return the flags of each of these releases, from its wheel."""
    listed = list_listed()
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(listed, pool.map(read_flags, listed), strict=True))


def render_table(flags: Mapping[str, Collection[str]]) -> str:
    """Return the text of `vllm_flags.yaml`."""
    lines = [
        "# The flags of `vllm serve` by name: what each release adds to and removes from those of the one before it.",
        "# Read from the sources in the published wheels by `python -m tests.support.vllm_flags`.",
        "releases:",
    ]
    before: set[str] = set()
    for version, names in flags.items():
        lines.append(f"  {version}:")
        for name, changed in (("added", {*names} - before), ("removed", before - {*names})):
            if changed:
                text = textwrap.fill(" ".join(sorted(changed)), 112, break_on_hyphens=False)
                lines += [f"    {name}: >-", textwrap.indent(text, " " * 6)]
        if lines[-1] == f"  {version}:":
            lines[-1] += " {}"
        before = {*names}
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    serve_flags.FILE.write_text(render_table(read_all_flags()), encoding="utf-8")
