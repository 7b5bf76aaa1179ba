"""Run by an engine's own Python: prints the nodes of the running Ray cluster as one line of JSON, or the error."""

import importlib.metadata
import json
from typing import Any


def nodes() -> dict[str, Any]:
    """Return each living node's host, GPUs and vLLM version, asked on the node itself."""
    try:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
    except ImportError:
        return {"error": "this engine has no Ray; `uv pip install ray` into it"}
    try:
        ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
    except ConnectionError:
        return {"error": "no Ray cluster runs"}

    @ray.remote(num_cpus=0)  # type: ignore[untyped-decorator, unused-ignore]
    def vllm() -> str:
        try:
            return importlib.metadata.version("vllm")
        except importlib.metadata.PackageNotFoundError:
            return ""

    living = [node for node in ray.nodes() if node["Alive"]]
    # On all hosts at once: a worker takes seconds to start.
    here = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in living]
    versions = ray.get([vllm.options(scheduling_strategy=strategy).remote() for strategy in here], timeout=40)
    return {
        "nodes": [
            {"host": node["NodeManagerHostname"], "gpus": int(node["Resources"].get("GPU", 0)), "vllm": version}
            for node, version in zip(living, versions, strict=True)
        ]
    }


if __name__ == "__main__":
    try:
        answer = nodes()
    except Exception as error:  # whatever it is, our caller shows it
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    print(json.dumps(answer))
