"""What can be said of an error that no known failure explains: where it was raised, and a guess of why. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

_SHOWN_FRAMES = 3
_FRAME = re.compile(
    r'^File "(?:.*(?:site-packages|dist-packages)[/\\])?(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$'
)
_OURS = re.compile(r"[/\\](?:vllm|torch|transformers)[/\\]")


class Area(NamedTuple):
    """A part of a server in which errors have the same remedies: its name, its signs, and what to try."""

    name: str
    message: str
    frames: str
    advice: str


_AREAS = (
    Area("memory", r"\bmemory\b|\balloc|\bOOM\b|too large for", r"$^",
         "Lower --gpu-memory-utilization, --max-num-seqs or --max-model-len."),
    Area("the network between processes or machines",
         r"\b(?:socket|NCCL|gloo|connection|rendezvous|zmq|TCPStore|peer|timed out|timeout)\b",
         r"torch[/\\]distributed|ray[/\\]|zmq|device_communicators|shm_broadcast",
         "See the logs of the other ranks first, and the network between them."),
    Area("the hub", r"hugging ?face|hf_hub|\bhub\b|https?://|repo(?:sitory)? id",
         r"huggingface_hub|requests[/\\]|urllib3",
         "Check the model's name, HF_TOKEN and the network."),
    Area("the driver", r"\bdriver\b|NVML|cudaGetDevice|CUDA (?:init|unknown)", r"torch[/\\]cuda[/\\]__init__|pynvml",
         "See nvidia-smi and dmesg, and compare the driver with the CUDA of the engine."),
    Area("compiling or running a kernel",
         r"triton|inductor|dynamo|nvcc|ptxas|cutlass|marlin|kernel|CUDA|cubl|cudnn|\bsm_?\d\d|compile|"
         r"shape '|size of tensor",
         r"triton|_inductor|_dynamo|vllm[/\\]compilation|flashinfer|_custom_ops|[/\\]attention[/\\]|fused_moe",
         "Try {eager}another attention backend, or {engine}."),
    Area("loading the weights", r"weight|checkpoint|safetensors|state_dict|embed_tokens|parameter",
         r"load_weights|weight_utils|model_loader|safetensors",
         "Check that the checkpoint is whole and that this release of vLLM supports it and its quantisation."),
    Area("the packages of the engine", r"\bimport\b|has no attribute|unexpected keyword|No module",
         r"<frozen importlib",
         "Use {engine}, or reinstall vLLM into an empty environment."),
    Area("the configuration", r"\bconfig|argument|option|must be|should be|not supported|invalid",
         r"arg_utils|vllm[/\\]config|configuration_|transformers_utils",
         "Read the message: it names what vLLM refuses."),
    Area("the model's code", r"$^", r"model_executor[/\\]models|transformers[/\\]models",
         "Use a newer vLLM or {engine}; without speculation shows whether the drafter is why."),
)  # fmt: skip


def guess_area(message: str, frames: tuple[str, ...]) -> Area | None:
    """Return the area that an error is probably about: by what it says, else by where it was raised."""
    innermost = [frame for frame in frames[::-1] if _OURS.search(frame)][:_SHOWN_FRAMES] or frames[::-1][:1]
    by_message = next((area for area in _AREAS if re.search(area.message, message, re.IGNORECASE)), None)
    by_frame = next((area for frame in innermost for area in _AREAS if re.search(area.frames, frame)), None)
    return by_message or by_frame


def list_telling_frames(frames: tuple[str, ...]) -> tuple[str, ...]:
    """Return the last three lines of a traceback that are of vLLM, torch or transformers, the innermost first."""
    ours = [frame for frame in reversed(frames) if _OURS.search(frame)]
    return tuple(ours[:_SHOWN_FRAMES]) or frames[-1:]


def shorten_frame(line: str) -> str:
    """Return a line of a traceback without the folders above the package; another line as it is."""
    return _FRAME.sub(r"\g<file>:\g<line> in \g<function>", line)
