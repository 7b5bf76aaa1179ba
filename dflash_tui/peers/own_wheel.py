"""Builds a wheel of this program from its own files, wherever it was installed from: no build backend, no network."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dflash_tui import __version__
from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError

_DISTRIBUTION, _PACKAGE = "dflash-tui", "dflash_tui"
# Folders that a checkout has beside the package, and a wheel in it.
_BESIDE = ("recipes", "patches")
_INFO = f"{_PACKAGE}-{__version__}.dist-info"
_WHEEL = "Wheel-Version: 1.0\nGenerator: dflash-tui\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# The oldest that a zip can say: the same files make the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)


class OwnWheel(NamedTuple):
    """A wheel of this program: the name of its file, and its bytes."""

    name: str
    data: bytes

    @property
    def digest(self) -> str:
        """Its SHA-256, in hexadecimal digits."""
        return hashlib.sha256(self.data).hexdigest()


def build_own_wheel() -> OwnWheel:
    """Return a wheel of the program that runs, from a wheel's installation or a checkout.

    Raises:
        DflashError: the program runs from a folder that was never installed, so that nobody knows what it needs.
    """
    files = dict(_list_package_files()) | _build_metadata()
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{_INFO}/RECORD"] = f"{record}{_INFO}/RECORD,,\n".encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.external_attr, entry.compress_type = 0o100644 << 16, zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return OwnWheel(f"{_PACKAGE}-{__version__}-py3-none-any.whl", archive.getvalue())


def _list_package_files() -> Iterator[tuple[str, bytes]]:
    """Yield the name in a wheel and the bytes of each file that the package has, with its recipes and patches."""
    roots = {_PACKAGE: paths.PACKAGE_ROOT} | {f"{_PACKAGE}/{kind}": paths.bundled_folder(kind) for kind in _BESIDE}
    paths_by_name = {f"{place}/{name}": path for place, root in roots.items() for name, path in _walk(root)}
    for name in sorted(paths_by_name):
        yield name, paths_by_name[name].read_bytes()


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield each file of ours below a folder: no link, which may lead anywhere, nothing hidden, nothing compiled."""
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        is_ours = not any(part.startswith(".") or part == "__pycache__" for part in parts)
        if is_ours and path.is_file() and not path.is_symlink():
            yield "/".join(parts), path


def _build_metadata() -> dict[str, bytes]:
    """Return the files of a wheel that say what it is and needs, by their names; what is installed says so.

    Raises:
        DflashError: it is not installed.
    """
    try:
        distribution = importlib.metadata.distribution(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        distribution = None
    if distribution is None or not (metadata := distribution.read_text("METADATA")):
        what = "this dflash-tui runs from a folder that was not installed, so nobody knows which packages it needs"
        raise DflashError(what, hint="pip install -e . in the checkout")
    # An editable installation keeps the version that the checkout had then.
    metadata = re.sub(r"(?m)^Version: .*$", f"Version: {__version__}", metadata, count=1)
    entries = distribution.read_text("entry_points.txt") or ""
    files = {"METADATA": metadata, "WHEEL": _WHEEL, "entry_points.txt": entries}
    files |= {f"licenses/{path.name}": text for path, text in _list_licenses(distribution)}
    return {f"{_INFO}/{name}": text.encode() for name, text in files.items()}


def _list_licenses(
    distribution: importlib.metadata.Distribution,
) -> Iterator[tuple[importlib.metadata.PackagePath, str]]:
    for path in distribution.files or ():
        if path.parent.name == "licenses" and path.parent.parent.suffix == ".dist-info":
            yield path, path.read_text()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
