"""The releases of vLLM that engines are built from, with CUDA: what uv installs for each, and how large that is."""

from __future__ import annotations

from functools import cache
from typing import Annotated

import msgspec
from msgspec import Meta

from dflash_tui.common import paths, yaml_loader
from dflash_tui.common.untrusted_json import register_type

_FILE = paths.PACKAGE_ROOT / "releases.yaml"


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One release: what uv is given (the fields of a recipe's engine), sizes, and the least NVIDIA driver."""

    packages: Annotated[tuple[str, ...], Meta(min_length=1)]
    exclude_newer: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$")]
    download_mb: Annotated[int, Meta(gt=0)]
    disk_mb: Annotated[int, Meta(gt=0)]
    driver: Annotated[str, Meta(pattern=r"^\d+$")]
    overrides: tuple[str, ...] = ()
    note: str = ""

    @property
    def transformers(self) -> str:
        """The version of transformers that is installed with it."""
        return next(line.removeprefix("transformers==") for line in self.packages if line.startswith("transformers=="))


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    releases: dict[str, Release]


register_type(_Table)


@cache
def load_releases() -> dict[str, Release]:
    """Return the releases by version, oldest first."""
    return yaml_loader.load_yaml(_FILE, _Table).releases
