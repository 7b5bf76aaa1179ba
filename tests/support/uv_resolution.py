"""What uv would install for an engine on another machine, from the package index alone."""

import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import uv

from dflash_tui.engines import uv_process
from dflash_tui.planning.recipes.recipe import EngineSpec

PYTHON = (3, 12)
MACHINES = ("x86_64", "aarch64")
GLIBC = 35  # of Ubuntu 22.04
UV = uv.find_uv_bin()  # here, since sysconfig is not safe for the first threads that ask it


class Wheel(msgspec.Struct, frozen=True, rename="kebab"):
    """One file of a package; a wheel of a local folder has neither address nor date."""

    url: str = ""
    upload_time: datetime = datetime.min.replace(tzinfo=UTC)

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


class Package(msgspec.Struct, frozen=True):
    """A package and its wheels for the Python and the machine that were asked for."""

    name: str
    version: str
    wheels: tuple[Wheel, ...] = ()


class _Lock(msgspec.Struct, frozen=True):
    packages: tuple[Package, ...]


def resolve(
    spec: EngineSpec, machine: str, wheel_folder: Path | None = None, *, env: dict[str, str] | None = None
) -> dict[str, Package]:
    """Return what `spec` resolves to by name, wheels only: nobody has to have a compiler.

    The recipe's `torch_backend` is left out: it is an index of its own. Threads are given their `env`: pytest changes
    the process's own meanwhile.
    """
    env = env or uv_process.build_uv_environment()
    env = env | {"UV_PYTHON_DOWNLOADS": "never", "UV_FIND_LINKS": str(wheel_folder or "")}
    with tempfile.TemporaryDirectory() as folder:
        overrides, lock = Path(folder, "overrides.txt"), Path(folder, "pylock.toml")
        overrides.write_text("\n".join(spec.overrides))
        argv = [UV, "pip", "compile", "-", "--overrides", str(overrides), "--only-binary", ":all:"]
        argv += ["--python-version", ".".join(map(str, PYTHON)), "--python-platform", f"{machine}-manylinux_2_{GLIBC}"]
        argv += ["--exclude-newer", spec.exclude_newer, "--output-file", str(lock)]
        packages = "\n".join(spec.packages)
        done = subprocess.run(argv, input=packages, env=env, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return {package.name: package for package in msgspec.toml.decode(lock.read_bytes(), type=_Lock).packages}
