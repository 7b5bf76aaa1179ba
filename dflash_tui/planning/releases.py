"""The table of vLLM releases that engines are installed from: what uv installs for each, and how large that is."""

from functools import cache
from typing import Annotated

import msgspec
from msgspec import Meta

from dflash_tui.common import paths
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.common.yaml_loader import load_yaml

_FILE = paths.PACKAGE_ROOT / "releases.yaml"


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One release, with the fields of a recipe's engine."""

    packages: Annotated[tuple[str, ...], Meta(min_length=1)]
    """What uv installs, as requirements."""
    exclude_newer: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$")]
    """Packages that were published after this day are not installed."""
    download_mb: Annotated[int, Meta(gt=0)]
    """Megabytes that uv downloads, measured."""
    disk_mb: Annotated[int, Meta(gt=0)]
    """Megabytes on disk, measured."""
    driver: Annotated[str, Meta(pattern=r"^\d+$")]
    """The least major version of the NVIDIA driver."""
    overrides: tuple[str, ...] = ()
    """Requirements that win over those of the packages."""
    note: str = ""
    """What a maintainer has to know of it."""

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
    return load_yaml(_FILE, _Table).releases
