"""Diagnose why a run failed from its log, exit and kernel messages; a root cause precedes its symptoms. Pure."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from dflash_tui.common.formatting import format_gib, truncate_middle
from dflash_tui.events import LogLine, MemorySampled, Phase, Problem
from dflash_tui.planning.recipes.recipe import RecipeFailure
from dflash_tui.run_state.state import RunState
from dflash_tui.vllm_output import log_facts
from dflash_tui.vllm_output.known_failures import (
    Circumstances,
    FailureMatch,
    Role,
    explain_failure,
    find_role,
    find_root_cause,
    recognize_failure,
)

_SHOWN_FRAMES = 3
_FRAME = re.compile(
    r'^File "(?:.*(?:site-packages|dist-packages)[/\\])?(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$'
)
_OURS = re.compile(r"[/\\](?:vllm|torch|transformers)[/\\]")


class Area(NamedTuple):
    """A part of a server whose errors have the same remedies: patterns of its messages and frames, and the advice."""

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
    Area("the hub", r"hugging ?face|hf_hub|\bhub\b|repo(?:sitory)? id", r"huggingface_hub",
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
         "Use a newer vLLM or {engine}; without speculation shows whether the drafter is the cause."),
)  # fmt: skip


def guess_area(message: str, frames: tuple[str, ...]) -> Area | None:
    """Return the probable area of an error, by its message, else by its frames."""
    innermost = list_telling_frames(frames)
    by_message = next((area for area in _AREAS if re.search(area.message, message, re.IGNORECASE)), None)
    by_frame = next((area for frame in innermost for area in _AREAS if re.search(area.frames, frame)), None)
    return by_message or by_frame


def list_telling_frames(frames: tuple[str, ...]) -> tuple[str, ...]:
    """Return the last three traceback lines in vLLM, torch or transformers, innermost first."""
    ours = [frame for frame in reversed(frames) if _OURS.search(frame)]
    return tuple(ours[:_SHOWN_FRAMES]) or frames[-1:]


def shorten_frame(line: str) -> str:
    """Return a traceback line without the folders above the package; other lines unchanged."""
    return _FRAME.sub(r"\g<file>:\g<line> in \g<function>", line)


UNKNOWN = "unknown"
_LAST_LINES = 4
_LONGEST_MESSAGE = 200  # within a cause; the evidence shows it in full
# Samples of memory older than this, in seconds before the end, are ignored.
_MEMORY_FRESH = 30.0
_NEARLY_FULL = 0.9
# Servers survive bad requests, so an unknown exception explains a failure only if it came right before it.
_UNKNOWN_WITHIN = 15.0
_KNOWN_WITHIN = 600.0
# Problems within this many seconds have the same cause.
_ONE_TROUBLE = 60.0
_ASKED_TO_END = re.compile(r"^\[shutdown\] API server: shutdown triggered|^Shutdown initiated \(timeout")
_EAGER = re.compile(rf"{log_facts.NOT_COMPILED}|\benforce_eager=True")
_ENGINE_FAILED = frozenset({"engine_dead", "init_failed"})
_OF_ENGINE = ("EngineCore", "Worker", "VllmWorker", "RayWorker", "rank")
_ENGINE_GONE = re.compile(r"engine core exited unexpectedly|^Engine core proc \S+ died unexpectedly")
_REPORT = "Read the log around the evidence; dflash-tui why --report (u in the panel) writes a text for vLLM's tracker."
_SEARCH = (
    "Read the log around the evidence, and search vLLM's issues for the message: github.com/vllm-project/vllm/issues"
)
_NOISE = re.compile(r"resource_tracker|warnings\.warn\(")
_KILLED = "Launch again. The system also kills processes when it is out of memory: dmesg, journalctl -u earlyoom."
_EXITS = {
    "oom_killed": (
        "the kernel killed it: out of memory",
        "Give the server less memory, or stop other programs that use it, then launch again.",
    ),
    "gpu_fault": ("the GPU or its driver failed", "See dmesg; reset the GPU or reboot, then launch again."),
    "engine_killed": ("the engine process was killed from outside, and the server exited after it", _KILLED),
    "engine_died": (
        "the engine process exited, and the log does not say why: it was killed from outside, often because the "
        "machine was out of memory, or it crashed in native code",
        "See dmesg: the kernel logs what it kills when out of memory, crashes, and GPU faults (Xid). Launch again.",
    ),
    "rebooted": (
        "the machine was rebooted, or its container restarted, while the server ran",
        "Launch again; `last -x | head` and `journalctl -b -1 -e` may say why it went down.",
    ),
    "terminated": (
        "it received SIGTERM or SIGINT, not from dflash-tui",
        "Launch again; closing a login session or a container stops what runs in it.",
    ),
    "killed": ("the server process was killed from outside (SIGKILL)", _KILLED),
    "crashed": (
        "it crashed in native code, without a Python traceback",
        "Another attention backend or eager mode may avoid it; report it to vLLM.",
    ),
}


Confidence = Literal["certain", "likely", "guess"]


class Diagnosis(msgspec.Struct, frozen=True):
    """Why a run failed."""

    what: str
    """When the server failed, and its exit code."""
    kind: str
    """The name of the cause; `unknown` if no cause was found."""
    cause: str
    evidence: tuple[str, ...]
    """The log lines that show it, the best first."""
    fix: tuple[str, ...]
    """The remedies, one sentence each."""
    log_values: dict[str, str] = {}
    """Numbers and names parsed from vLLM's line."""
    link: str = ""
    """A page about this failure."""
    advice: str = ""
    """The recipe's advice on this failure; empty if the recipe does not list it."""
    confidence: Confidence = "certain"
    process: str = ""
    """vLLM's name of the process that failed first; empty when the log does not say."""


def diagnose_run(
    state: RunState, recipe_failures: Sequence[RecipeFailure] = (), circumstances: Circumstances | None = None
) -> Diagnosis | None:
    """Return why the run of `state` failed, or None if it did not.

    `circumstances` is None where only the log is available.
    """
    circumstances = _complete_circumstances(circumstances or Circumstances(), state)
    unhealthy = state.exit is None and state.status == "unhealthy"
    if not unhealthy and (state.exit is None or state.stopping):
        return None
    diagnosis = (
        _diagnose_by_kernel(state)
        or _diagnose_by_log(state, recipe_failures, circumstances)
        or _diagnose_by_exit(state)
        or _diagnose_reboot(state)
        or _diagnose_unknown(state, circumstances)
    )
    evidence = [*diagnosis.evidence, *([state.health_detail] if unhealthy and state.health_detail else [])]
    return msgspec.structs.replace(diagnosis, what=_describe_failure(state), evidence=tuple(dict.fromkeys(evidence)))


def find_logged_cause(state: RunState) -> Problem | None:
    """Return the logged problem that explains a failure, or None.

    A failed start is explained by its first problem. Once up, it is the first problem of the last known failure, if the
    end came within ten minutes of it; else the first exception of the last 15 seconds.
    """
    if state.up_at is None:
        return find_root_cause(state.problems)
    problems = [problem for problem in _list_late_problems(state, _KNOWN_WITHIN) if problem.kind]
    unknown = [problem for problem in _list_late_problems(state, _UNKNOWN_WITHIN) if not problem.kind]
    if not problems:
        return find_root_cause(unknown)
    cause = find_root_cause(problem for problem in problems if problem.at >= problems[-1].at - _ONE_TROUBLE)
    if cause is not None and find_role(cause) is Role.CONSEQUENCE:  # a bad request did not cause it
        before = (problem for problem in unknown if problem.process.startswith(_OF_ENGINE) and problem.at <= cause.at)
        return find_root_cause(before) or cause
    return cause


def _list_late_problems(state: RunState, seconds: float) -> Iterator[Problem]:
    """Yield the problems of the last `seconds` before the exit or the first bad /health answer."""
    end = state.exit.at if state.exit else state.health_at
    return (problem for problem in state.problems if problem.at >= end - seconds)


def find_problem_line(problem: Problem, lines: Sequence[LogLine]) -> int | None:
    """Return the index of the first line of `problem`, or None if that line was dropped."""
    first = problem.text.partition("\n")[0]
    there = (i for i, line in enumerate(lines) if line.at == problem.at and line.text.strip() == first)
    return next(there, None)


def _complete_circumstances(circumstances: Circumstances, state: RunState) -> Circumstances:
    """Return `circumstances` completed from the log: release, failing phase, eager mode."""
    logged = state.startup.facts.get("vllm", ("",))[0]
    phase = Phase.UP if state.up_at is not None else state.startup.phase
    eager = circumstances.eager or any(_EAGER.search(line.text) for line in state.lines)
    return circumstances._replace(
        release=circumstances.release or logged, phase=circumstances.phase or phase, eager=eager
    )


def _describe_failure(state: RunState) -> str:
    if state.exit is None:
        return "the server runs but does not respond correctly"
    first = state.startup.first_request
    when = "exited before it was ready" if state.up_at is None else "failed while serving"
    if state.up_at is not None and first is not None and first.error:
        when = "answered /health and failed on its first request"
    code = state.exit.code
    number = _read_signal(state)
    status = "unknown" if code is None else f"{code}, {number.name}" if number else str(code)
    return f"the server {when} (exit code {status})"


def _read_signal(state: RunState) -> signal.Signals | None:
    """Return the signal that ended the server, from Python's negative code or a shell's code above 128."""
    code = state.exit.code if state.exit else None
    if code is None or not (code < 0 or code > 128):
        return None
    try:
        return signal.Signals(-code if code < 0 else code - 128)
    except ValueError:
        return None


def _explain_exit(kind: str, *evidence: str) -> Diagnosis:
    cause, fix = _EXITS[kind]
    return Diagnosis("", kind, cause, tuple(line for line in evidence if line), (fix,))


def _diagnose_reboot(state: RunState) -> Diagnosis | None:
    """Diagnose a reboot: the exit was not observed, the log shows no cause, and the machine has booted since."""
    lost = state.exit is not None and state.exit.lost and find_logged_cause(state) is None
    return _explain_exit("rebooted", _format_memory(state)) if lost else None


def _diagnose_by_kernel(state: RunState) -> Diagnosis | None:
    """Diagnose from the kernel's log, which is reliable; vLLM's message is added to a GPU fault."""
    lines = state.autopsy.kernel if state.autopsy else ()
    if out := [line for line in lines if "Killed process" in line]:
        return _explain_exit("oom_killed", *out, _format_memory(state))
    problem = find_logged_cause(state)
    if lines and (problem is None or problem.kind in {"", "device_fault"}):
        kind = "gpu_fault" if any("Xid" in line for line in lines) else "crashed"
        return _explain_exit(kind, *lines, problem.text if problem else "")
    return None


def _diagnose_by_log(
    state: RunState, recipe_failures: Sequence[RecipeFailure], circumstances: Circumstances
) -> Diagnosis | None:
    problem = find_logged_cause(state)
    text = problem.text if problem else state.health_detail if state.exit is None else ""
    match = explain_failure(text, problem.frames if problem else (), circumstances)
    fitting = [
        failure for failure in recipe_failures if circumstances.fits(failure.releases, failure.hardware, failure.phases)
    ]
    listed = next((failure for failure in fitting if _matches_sign(failure.sign, text)), None)
    if listed is None and match is None:  # the sign may be in a line of no known failure
        rows = (
            (failure, line.text)
            for failure in fitting
            for line in _list_error_lines(state)
            if _matches_sign(failure.sign, line.text)
        )
        listed, text = next(rows, (None, text))
    if listed is None and (match is None or match.failure.role is Role.SYMPTOM):
        return None
    diagnosis = _explain_match(match, circumstances) if match else Diagnosis("", "recipe", "", (), ())
    memory = _format_memory(state) if diagnosis.kind in {"out_of_memory", "worker_died"} and listed is None else ""
    evidence, process = tuple(filter(None, (*text.split("\n"), memory))), problem.process if problem else ""
    diagnosis = msgspec.structs.replace(diagnosis, evidence=evidence, process=process)
    if listed is None:
        return diagnosis
    advice = " ".join(listed.fix.split())
    return msgspec.structs.replace(
        diagnosis,
        cause=listed.cause.strip(),
        fix=(f"the recipe says: {advice}", *diagnosis.fix),
        link=listed.link or diagnosis.link,
        advice=advice,
    )


def _explain_match(match: FailureMatch, circumstances: Circumstances) -> Diagnosis:
    failure = match.failure
    sure: Confidence = "likely" if failure.likely or failure.role is Role.CONSEQUENCE else "certain"
    fix = [match.fix]
    if failure.fixed_in and not circumstances.is_in(f">={failure.fixed_in}"):
        fix.append(f"vLLM {failure.fixed_in} and newer have a fix.")
    return Diagnosis("", match.kind, match.cause, (), tuple(fix), match.log_values, failure.link, "", sure)


def _diagnose_by_exit(state: RunState) -> Diagnosis | None:
    """Diagnose from the exit code or signal, only if the log has no exception at all."""
    if find_logged_cause(state) is not None or state.exit is None:
        return None
    stop_line = next((line.text for line in state.lines if _ASKED_TO_END.search(line.text)), "")
    gone = next((line.text for line in state.lines if _ENGINE_GONE.search(line.text)), "")
    number = _read_signal(state)
    if stop_line or number in {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
        waits = [line.text for line in state.lines if "Waiting for connections to close" in line.text]
        return _explain_exit("terminated", stop_line, *waits[-1:])
    errors = (line.text.strip() for line in _list_error_lines(state))
    dead = gone or next((text for text in errors if recognize_failure(text) in _ENGINE_FAILED), "")
    kind = "engine_killed" if gone else "killed" if number is signal.SIGKILL else "crashed" if number else ""
    if not kind and not dead:
        return None
    if not kind:
        return msgspec.structs.replace(_explain_exit("engine_died", dead, _format_memory(state)), confidence="likely")
    kills = state.autopsy.kills if state.autopsy else None
    counted = f"the kernel killed {kills} process{'es' * (kills > 1)} meanwhile: out of memory" if kills else ""
    diagnosis = _explain_exit(kind, gone, counted, _format_memory(state))
    memory = _find_peak_memory(state)
    full = memory is not None and memory.used >= _NEARLY_FULL * memory.total
    if kind != "crashed" and (kills or full):
        likely = f"{diagnosis.cause}, most likely by the system because it was out of memory"
        return msgspec.structs.replace(diagnosis, cause=likely)
    return diagnosis


def _diagnose_unknown(state: RunState, circumstances: Circumstances) -> Diagnosis:
    """Diagnose from the unknown exception and where it was raised, or from the end of the log."""
    fix = _REPORT if circumstances.has_recipe else _SEARCH
    if problem := find_logged_cause(state):
        message = problem.text.split("\n")
        area = guess_area(problem.text, problem.frames)
        where = f", probably in {area.name}" if area else ""
        cause = f"an error unknown to dflash-tui{where}: {truncate_middle(message[0], _LONGEST_MESSAGE)}"
        evidence = (*message, *list_telling_frames(problem.frames))
        steps = (area.advice.format_map(circumstances.advice_values), fix) if area else (fix,)
        return Diagnosis("", UNKNOWN, cause, evidence, steps, confidence="guess", process=problem.process)
    cause = "the server answers requests with errors" if state.exit is None else "the log ends without an error"
    if state.exit and state.exit.code is None:  # only the parent process knows the exit code
        cause += ": it was probably killed, often by the system when out of memory"
    last = [line.text for line in state.lines if not _NOISE.search(line.text)][-_LAST_LINES:]
    return Diagnosis("", UNKNOWN, cause, () if state.exit is None else tuple(last), (fix,), confidence="guess")


def _list_error_lines(state: RunState) -> Iterator[LogLine]:
    """Yield the log lines that may be errors: of level ERROR or CRITICAL, or without a level (tracebacks)."""
    end = state.exit.at if state.exit else state.health_at
    since = -math.inf if state.up_at is None else end - _KNOWN_WITHIN
    return (line for line in state.lines if line.level in {"", "ERROR", "CRITICAL"} and line.at >= since)


def _matches_sign(sign: str, text: str) -> bool:
    """Whether a line of `text` contains the parts of a recipe's sign, separated by `.*`, in order.

    A sign is not matched as a regular expression: shared recipes are not trusted, and matching can take forever.
    """

    def has_parts(line: str) -> bool:
        for part in filter(None, sign.split(".*")):
            _, found, line = line.partition(part)
            if not found:
                return False
        return True

    return any(has_parts(line) for line in text.split("\n"))


def _find_peak_memory(state: RunState) -> MemorySampled | None:
    """Return the peak memory shortly before the end; after its engine exits the server holds little."""
    end = state.exit.at if state.exit else math.inf
    return max((m for m in state.memory if m.at >= end - _MEMORY_FRESH), key=lambda m: m.used, default=None)


def _format_memory(state: RunState) -> str:
    if (memory := _find_peak_memory(state)) is None:
        return ""
    share = f"{format_gib(memory.used)} of {format_gib(memory.total)}"
    return f"{share} ({memory.source}) held in the last {_MEMORY_FRESH:.0f} s"
