"""Every engine that we offer resolves on the package index, for x86-64 and aarch64, to the versions it names."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from msgspec.structs import replace
from packaging.version import Version

from dflash_tui.engines import uv_process
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.recipes.recipe import EngineSpec
from tests.support import tiny_wheels
from tests.support.uv_resolution import MACHINES, Package, resolve

DEMO = resolution.resolve_recipe(recipe_loader.find_recipe("demo-cpu")).engine
SPECS: dict[str, EngineSpec] = {**recipe_loader.load_releases(), "demo-cpu": DEMO}
CASES = [(name, machine) for name in SPECS for machine in MACHINES]
Case = tuple[str, str]
# The newest release and the demo always, all others with `-m long`.
QUICK = [(max(recipe_loader.load_releases(), key=Version), "aarch64"), ("demo-cpu", "x86_64")]
# They share what they resolve, so one worker has them all.
pytestmark = pytest.mark.xdist_group("resolve")


@pytest.fixture(scope="module")
def index(engine_data) -> Iterator[None]:
    """Skip without the index; keep what uv learns of it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("UV_CACHE_DIR", os.environ.get("UV_CACHE_DIR", str(engine_data / "uv")))
        try:
            resolve(replace(DEMO, packages=("iniconfig",), overrides=()), "x86_64")
        except AssertionError as error:
            if re.search("(?i)connect|dns|network|timed? ?out", str(error)):
                pytest.skip("the package index cannot be reached")
            raise
        yield


@pytest.fixture(scope="module")
def resolved(index, request) -> Iterator[dict[Case, Future[dict[str, Package]]]]:
    """Resolve what is asked for side by side: uv mostly waits for the index."""
    asked = [
        item.callspec.params
        for item in request.session.items
        if item.originalname == "test_profile_resolves_to_named_values"
    ]
    with ThreadPoolExecutor(4) as pool:
        cases = [(params["name"], params["machine"]) for params in asked]
        env = uv_process.build_uv_environment()
        yield {case: pool.submit(resolve, SPECS[case[0]], case[1], env=env) for case in cases}
        pool.shutdown(cancel_futures=True)


@pytest.mark.index
@pytest.mark.parametrize(
    ("name", "machine"), [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.long) for case in CASES]
)
def test_profile_resolves_to_named_values(name, machine, resolved):
    """Wheels for everything, the pinned versions, and for a release the torch for CUDA 13."""
    found = resolved[name, machine].result()
    spec = SPECS[name]
    pins = [line.split("==") for line in (*spec.packages, *spec.overrides) if re.fullmatch(r"[\w-]+==[\w.]+", line)]
    assert {name: found[name].version for name, _ in pins} == dict(pins)
    if name == "demo-cpu":
        assert not {"torchaudio", "torchvision", "triton"} & found.keys()
    else:
        assert Version(found["torch"].version).local in {None, "cu130"}
        assert found["nvidia-cuda-runtime"].version.startswith("13.")


@pytest.mark.index
def test_release_ignores_cpu_torch_in_wheel_folder(index, tmp_path):
    """A `+cpu` build counts as newer than the same version of the index."""
    tiny_wheels.write_files(tmp_path, "torch", "2.13.0+cpu", {})
    release = recipe_loader.load_releases()["0.32.0"]
    assert resolve(release, "x86_64", tmp_path)["torch"].version == "2.13.0"
    unguarded = replace(release, packages=tuple(line for line in release.packages if not line.startswith("torch")))
    assert resolve(unguarded, "x86_64", tmp_path)["torch"].version == "2.13.0+cpu"


def test_the_table_is_in_order():
    """Each release is named by its vLLM, pins its transformers and keeps a CPU torch out; the oldest comes first."""
    table = recipe_loader.load_releases()
    for version, release in table.items():
        assert f"vllm=={version}" in release.packages
        assert any(re.fullmatch(r"transformers==[\d.]+", line) for line in release.packages)
        assert any(line.startswith("torch!=") and line.endswith("+cpu") for line in release.packages)
    assert list(table) == sorted(table, key=Version)
