"""Preview patches on a published wheel, of which only the patched files are fetched, by range requests."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit
from zipfile import BadZipFile, ZipFile

import requests
import uv
from remotezip import RemoteIOError, RemoteZip

from dflash_tui.common.errors import EngineError
from dflash_tui.common.sanitizer import clean_text
from dflash_tui.engines import uv_process
from dflash_tui.engines.patching import text_edits
from dflash_tui.engines.uv_process import advise_on_install_error
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.recipes.recipe import EngineSpec

_SECONDS = 60


def preview_on_wheel(patches: Sequence[Patch], spec: EngineSpec) -> dict[str, str]:
    """Return a unified diff per file for patches on the wheel that `spec` would install."""
    paths = {path for patch in patches for path in patch.paths}
    texts = _read_files(_find_wheel(spec), paths, spec) if paths else {}
    return text_edits.diff_patches(patches, texts)


def _find_wheel(spec: EngineSpec) -> str:
    """Return the URL or path of the wheel that uv would install from the user's own indexes and mirrors."""
    argv = ["pip", "compile", "-", "--no-deps", "--no-header", "--quiet", "--format", "pylock.toml"]
    result = subprocess.run(
        [uv.find_uv_bin(), *argv, "--only-binary", ":all:"],
        input=f"{spec.distribution}=={spec.vllm}\n",
        capture_output=True,
        text=True,
        check=False,
        env=uv_process.build_uv_environment(),
        cwd="/",  # ignores a uv.toml in the current folder
    )
    wheels = [
        wheel.get("url") or wheel.get("path", "")
        for package in (tomllib.loads(result.stdout).get("packages", ()) if result.returncode == 0 else ())
        for wheel in package.get("wheels", ())
    ]
    if not wheels:
        raise _describe_failure(spec, result.stderr)
    return str(wheels[0])


def _read_files(address: str, paths: Iterable[str], spec: EngineSpec) -> dict[str, str | None]:
    url = urlsplit(address)
    try:
        is_remote = url.scheme in {"http", "https"}
        with RemoteZip(address, timeout=_SECONDS) if is_remote else ZipFile(Path(unquote(url.path))) as wheel:
            names = set(wheel.namelist())
            return {path: wheel.read(f"vllm/{path}").decode() if f"vllm/{path}" in names else None for path in paths}
    except (requests.RequestException, RemoteIOError, BadZipFile, OSError, UnicodeDecodeError) as error:
        raise _describe_failure(spec, f"{address}: {error}") from None


def _describe_failure(spec: EngineSpec, evidence: str) -> EngineError:
    text = clean_text(evidence.strip(), 1500)
    hint = f"{advise_on_install_error(text, Path())}; an installed engine needs no network: dflash-tui engine install"
    return EngineError(f"the wheel of {spec.distribution} {spec.vllm} cannot be read", evidence=text, hint=hint)
