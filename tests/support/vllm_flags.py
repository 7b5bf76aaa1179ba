"""The flags of `vllm serve` of a published release, read from its sources without running them.

`python -m tests.support.vllm_flags VERSION` prints those that nobody has judged: they count as powers.
"""

import ast
import re
import sys

from dflash_tui.planning import harmless_options, recipe_loader
from dflash_tui.planning.power_words import FLAG_WORDS
from tests.support import wheels

_SOURCES = re.compile(r"vllm/(engine/arg_utils|entrypoints/.*cli_args|entrypoints/cli/serve|utils/argparse_utils)\.py")


def read_flags(version: str) -> set[str]:
    """Return the flags without dashes: what is added by name, and the fields of the front end's arguments."""
    with wheels.opened("vllm", version) as wheel:
        sources = {name: wheel.read(name).decode() for name in wheel.namelist() if _SOURCES.fullmatch(name)}
    return {flag for name, text in sources.items() for flag in _list_flags(ast.parse(text), fields="cli_args" in name)}


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


if __name__ == "__main__":
    judged = harmless_options.list_harmless_flags(sys.argv[1]) | FLAG_WORDS.keys() | recipe_loader.RESERVED_FLAGS
    print(*sorted(read_flags(sys.argv[1]) - judged), sep="\n")
