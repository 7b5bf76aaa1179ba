"""Files of published wheels, read from the package index by range requests: no wheel is downloaded whole."""

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import requests
from packaging.version import Version
from pypi_simple import PYPI_SIMPLE_ENDPOINT, DistributionPackage, PyPISimple
from remotezip import RemoteZip

FIRST = Version("0.18.1")  # the first release that the table of patches begins with
Release = tuple[str, str]  # project and version
Texts = dict[str, str | None]


@cache
def published(project: str) -> dict[str, DistributionPackage]:
    """Return the x86-64 wheel of each release from 0.18.1 on, oldest first; pre-releases and yanked ones left out.

    Raises:
        requests.RequestException: the index cannot be reached.
    """
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL") or PYPI_SIMPLE_ENDPOINT
    with PyPISimple(index) as client:
        packages = client.get_project_page(project, timeout=60).packages
    wheels = [p for p in packages if p.filename.endswith("x86_64.whl") and not p.is_yanked]
    found = {Version(wheel.version or "0"): wheel for wheel in wheels}
    return {str(v): found[v] for v in sorted(found) if v >= FIRST and not v.is_prerelease}


@contextmanager
def opened(project: str, version: str) -> Iterator[RemoteZip]:
    """Open a published wheel; its files come over one connection, as making one costs more than a file does."""
    url = published(project)[version].url
    with requests.Session() as session, RemoteZip(url, session=session, timeout=60) as wheel:
        yield wheel


@contextmanager
def skip_if_unreachable() -> Iterator[None]:
    """Skip a test whose package index cannot be reached."""
    try:
        yield
    except requests.RequestException as error:
        pytest.skip(f"the package index cannot be reached: {type(error).__name__}")


def read(project: str, version: str, paths: Iterable[str]) -> Texts:
    """Return the texts of files of the `vllm` package; None for one that the release does not have."""
    with opened(project, version) as wheel:
        names = set(wheel.namelist())
        return {path: wheel.read(f"vllm/{path}").decode() if f"vllm/{path}" in names else None for path in paths}


def read_all(wanted: Mapping[Release, Iterable[str]]) -> dict[Release, Texts]:
    """Return what `read` does for each release, eight wheels at a time, each opened once."""
    with ThreadPoolExecutor(8) as pool:
        texts = pool.map(lambda release: read(release[0], release[1], wanted[release]), wanted)
        return dict(zip(wanted, texts, strict=True))


def unpack(project: str, version: str, paths: Iterable[str], site_packages: Path) -> None:
    """Unpack these files of the `vllm` package, and the wheel's own records, as an installer would."""
    with opened(project, version) as wheel:
        wanted = {f"vllm/{path}" for path in paths}
        for name in wheel.namelist():
            if name in wanted or ".dist-info/" in name:
                wheel.extract(name, site_packages)
