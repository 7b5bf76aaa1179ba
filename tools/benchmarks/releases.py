"""Measure the figures of `dflash_tui/releases.yaml`: `python -m tools.benchmarks.releases dates|sizes [version...]`.

dates   when the wheels of vLLM, torch and transformers were uploaded, and the newest wheel of all that are installed,
        for x86-64 and aarch64; a date that is too early for one of the two shows as a failed resolution
sizes   what the resolution for x86-64 downloads, and takes on disk: every file of every wheel in blocks of 4 KiB and
        1.29 times the .py files once more for their byte code (measured on the demo's engine), read from the wheels'
        own directories, the last part of each file
"""

import argparse
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cache
from itertools import chain
from zipfile import BadZipFile, ZipFile

import httpx
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import EngineSpec
from tests.support.uv_resolution import GLIBC, MACHINES, PYTHON, Package, Wheel, resolve

BYTE_CODE = 1.29
BLOCK = 4096
NAMED = ("vllm", "torch", "transformers")
CLIENT = httpx.Client(follow_redirects=True, timeout=60)


@cache
def ranks() -> dict[Tag, int]:
    """Return the tags that fit x86-64, the best one first."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)]
    platforms += [f"manylinux{old}_x86_64" for old in (2014, 2010, 1)]
    found = chain(cpython_tags(PYTHON, platforms=platforms), compatible_tags(PYTHON, platforms=platforms))
    return {tag: rank for rank, tag in enumerate(found)}


def chosen(package: Package) -> Wheel:
    """Return the wheel of the package that x86-64 would install."""

    def order(wheel: Wheel) -> tuple[int, int]:
        _, _, build, tags = parse_wheel_filename(wheel.name)
        return min(ranks().get(tag, len(ranks())) for tag in tags), -(build[0] if build else 0)

    return min(package.wheels, key=order)


@cache
def size(url: str) -> tuple[int, int]:
    """Return the size of the wheel and that of its files on disk, with their byte code."""
    tail = 1 << 16
    while True:
        answer = CLIENT.get(url, headers={"Range": f"bytes=-{tail}"}).raise_for_status()
        total = int(answer.headers.get("content-range", answer.headers["content-length"]).rpartition("/")[2])
        with tempfile.TemporaryFile() as sparse:
            sparse.seek(max(0, total - len(answer.content)))
            sparse.write(answer.content)
            try:
                files = ZipFile(sparse).infolist()
            except BadZipFile:  # the directory is longer than that
                tail *= 8
                continue
        sizes = [file.file_size for file in files]
        sizes += [round(file.file_size * BYTE_CODE) for file in files if file.filename.endswith(".py")]
        return total, sum(-(-each // BLOCK) * BLOCK for each in sizes)


def sizes(version: str, release: EngineSpec) -> None:
    wheels = [chosen(package) for package in resolve(release, "x86_64").values()]
    with ThreadPoolExecutor(8) as pool:
        found = list(zip(pool.map(size, (wheel.url for wheel in wheels)), wheels, strict=True))
    download, disk = (sum(measured[part] for measured, _ in found) / 1e6 for part in (0, 1))
    largest = sorted(found, key=lambda each: -each[0][0])[:3]
    told = ", ".join(f"{wheel.name.partition('-')[0]} {measured[0] / 1e6:.0f}" for measured, wheel in largest)
    print(f"{version:8} download_mb {download:.0f}  disk_mb {disk:.0f}  {len(found)} wheels, the largest {told}")


def uploaded(package: Package) -> datetime:
    return max(wheel.upload_time for wheel in package.wheels)


def dates(version: str, release: EngineSpec) -> None:
    for machine in MACHINES:
        try:
            packages = resolve(release, machine)
        except AssertionError as error:
            print(version, machine, "does not resolve:", re.sub(r"\s+", " ", str(error)))
            continue
        newest = max((wheel.upload_time, wheel.name) for package in packages.values() for wheel in package.wheels)
        told = [f"{name} {packages[name].version} {uploaded(packages[name]):%F}" for name in NAMED]
        print(version, machine, *told, f"newest {newest[0]:%F} {newest[1]}", sep="  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("dates", "sizes"))
    parser.add_argument("versions", nargs="*", help="of the table (default: all)")
    args = parser.parse_args()
    table = recipe_loader.load_releases()
    work = dates if args.what == "dates" else sizes
    for version in args.versions or table:
        work(version, table[version])


if __name__ == "__main__":
    main()
