"""Explain why a vLLM server failed from its log alone: a posted or piped log, from any machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from dflash_tui.common.errors import UsageError
from dflash_tui.diagnosis.cause import UNKNOWN, Diagnosis, diagnose_run, find_logged_cause
from dflash_tui.diagnosis.explanation import NO_FAILURE, Explanation, explain_alarms, name_phase
from dflash_tui.diagnosis.log_source import LogSource, Unwrapper
from dflash_tui.events import Exited, Launched, LogLine, Problem
from dflash_tui.run_state.alarms import build_acceptance_alarm, find_log_alarms
from dflash_tui.run_state.state import RunState
from dflash_tui.vllm_output.known_failures import Circumstances, list_symptoms
from dflash_tui.vllm_output.log_reader import LogReader

_STOPPED = re.compile(r"resource_tracker|warnings\.warn|\[c10d\]|return func\(|Warning: ")


class Wait(NamedTuple):
    """A silent wait of a server: its kind, a pattern of the last line before it, the cause and the fix."""

    kind: str
    pattern: str
    cause: str
    fix: str


_WAITS = (
    Wait("waits_for_ranks", r"world_size=(?!1\b)\d+ rank=\d+ .*distributed_init_method=tcp://(?!127\.|localhost)",
         "the log ends while the server waits for the other ranks: one was not started, or cannot be reached",
         "Start every rank with the same --master-addr and --master-port, and open the ports between the machines; the "
         "wait ends after --distributed-timeout-seconds (30 minutes by default)."),
    Wait("waits_for_nccl", r"vLLM is using nccl==|CustomAllreduce is disabled|CPU SHM communicator disabled|NCCL INFO",
         "the log ends while GPUs or machines begin to talk to each other (NCCL), which hangs",
         "Set VLLM_HOST_IP on each machine to an address that the others reach, NCCL_SOCKET_IFNAME and "
         "GLOO_SOCKET_IFNAME "
         "to that network; on one machine try NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce. NCCL_DEBUG=INFO "
         "shows more."),
    Wait("waits_for_ray", r"Waiting for creating a placement group|No available node types can fulfill",
         "the log ends while Ray looks for the GPUs that the command asks for",
         "See ray status: join the other machines, and set VLLM_HOST_IP of each to its address in Ray."),
    Wait("waits_for_worker", r"No available shared memory broadcast block found in",
         "a worker does not answer: it hangs, or it compiles for a long time",
         "Look at the worker with py-spy dump, and at its log; eager mode shows whether it compiles."),
)  # fmt: skip


def find_wait(lines: Iterable[LogLine]) -> tuple[Wait, str] | None:
    """Return the known wait that the last informative line shows, with that line, or None."""
    telling = [line.text for line in lines if line.level and not _STOPPED.search(line.text)][-1:]
    return next(((wait, text) for text in telling for wait in _WAITS if re.search(wait.pattern, text)), None)


_OF_VLLM = re.compile(
    rb"(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+:\d+\]|"
    rb"\((?:APIServer|EngineCore|\w*Worker)[^()\n]*pid=|[/\\]vllm[/\\]\w|\bvllm(?:\.\w+){2,}|"
    rb"vLLM (?:API )?server version|vllm(?: serve)?: error|Engine core init|EngineDeadError|SpecDecoding metrics: "
)
# A posted log is untrusted, and a line may have 1 MB: patterns must not backtrack over a line.
_BOOT = re.compile(rb"vLLM (?:API )?server version \S|\xe2\x96\x88(?:(?!\xe2\x96\x88)[^\n])*?\bversion \d")
_BOOT_WORDS = (b"server version ", "█".encode())
_SERVED = ('" 200 OK', "Avg prompt throughput: ")
_SERVED_ON = 3
_DEAD = frozenset({"engine_dead", "init_failed", "app_failed"})
_ASKED_TO_END = re.compile(r"\[shutdown\] API server: shutdown triggered|^Shutdown initiated|^Shutting down$")
_VERSIONS = re.compile(
    rb"(?im)\b(?P<name>vllm|torch|pytorch|transformers|triton|flashinfer|cuda runtime|nvidia driver)(?:[ _-]python)?"
    rb"(?: api)?(?: server)?(?: version)? {0,9}(?:==|:| )\s{0,9}v?(?P<version>\d+\.\d+[\w.+-]*)"
)
_CALLED = {"pytorch": "torch", "cuda runtime": "cuda", "nvidia driver": "driver"}
_LOOKED_FOR = "lines such as `INFO 11-22 10:00:00 [core.py:1] …`, `(EngineCore pid=…)`, vLLM's tracebacks and errors"
_VERSIONS_WITHIN = 1 << 18
_GONE = (
    "If the server no longer runs, it was killed from outside: dmesg and the container's state say by whom, often "
    "because the machine was out of memory. If it runs, it is still starting."
)
_PROCESS_NUMBER = re.compile(r",? ?\b(?:pid|ip)=[^ ,]*")
_UNLIKE = 8 << 20
# Part of vLLM's line of speculation metrics, which some posted logs break into several.
_NO_DRAFTS = re.compile(rb"Avg Draft acceptance rate: 0\.0+%")
_FRAGMENT = 400


class _Boot:
    """One start of a server in a log, which may hold several."""

    def __init__(self) -> None:
        self.state = RunState()
        self._reader = LogReader(0.0, 0.0)
        self._dead = self._was_stopped = self._has_problem = False
        self._served_on = 0
        self.state.apply(Launched(0.0, "", "", 0, 0, ""))
        self.drafts_in_vain = ""

    def read(self, lines: bytes) -> None:
        """Read whole lines of this start."""
        if match := _NO_DRAFTS.search(lines):
            self.drafts_in_vain = match[0].decode()
        events = self._reader.feed(lines)
        for event in events:
            if type(event) is LogLine:
                self._read_text(event.text)
            elif isinstance(event, Problem):
                self._served_on = 0
                self._has_problem = self._has_problem or event.kind not in list_symptoms()
                self._dead = self._dead or event.kind in _DEAD
        self.state.apply_all(events)

    def _read_text(self, text: str) -> None:
        """Note whether the server serves after a problem, and whether it was asked to stop before any."""
        if self._has_problem:
            self._served_on += _SERVED[0] in text or _SERVED[1] in text
        elif "hut" in text and not self._dead:
            self._was_stopped = self._was_stopped or bool(_ASKED_TO_END.search(text))

    @property
    def at(self) -> float:
        """When its last line was logged."""
        return self.state.lines[-1].at if self.state.lines else 0.0

    @property
    def began(self) -> bool:
        """Whether the server came up, or failed before that."""
        return self.state.up_at is not None or bool(self.state.problems) or self._dead

    def diagnose(self) -> Diagnosis | None:
        """Return why the server failed, or None if it did not."""
        self.state.apply(Exited(self.at, None))
        if self.state.up_at is None and not self.began:
            return None
        if self.state.up_at is not None:
            problem = find_logged_cause(self.state)
            survived = self._served_on >= _SERVED_ON if problem and problem.kind else not self._dead
            if self._was_stopped or (not self._dead and survived):
                return None
        return diagnose_run(self.state, circumstances=Circumstances(has_recipe=False))

    def explain_silence(self) -> Explanation:
        """Return the explanation of a log without a failure: alarms, a known wait, or where the log ends."""
        alarms = find_log_alarms(self.state)
        if self.drafts_in_vain and not alarms:
            vain = build_acceptance_alarm(self.at, self.drafts_in_vain)
            return msgspec.structs.replace(explain_alarms((vain,), self.state, ""), confidence="likely")
        if self.state.up_at is not None or self.state.logged_speculation:
            health = "the server was up, and was asked to stop" if self._was_stopped else "the server was up"
            return explain_alarms(alarms, self.state, f"this log shows no failure: {health}")
        phase = name_phase(self.state)
        if waited := find_wait(self.state.lines):
            wait, line = waited
            return Explanation(wait.kind, wait.cause, (line,), (wait.fix,), "likely", phase)
        where = f"in the phase {phase}, " if phase else ""
        cause = f"this log shows no failure: it ends {where}before the server is up"
        return Explanation(NO_FAILURE, cause, (), (_GONE,), "likely", phase)


def explain_log(source: LogSource) -> Explanation:
    """Return why the last failed server of a log failed; raise UsageError if it is no log of vLLM."""
    unwrapper, boot, failed = Unwrapper(), _Boot(), None
    versions: dict[str, str] = {}
    is_of_vllm, size = False, 0
    for wrapped in source.read_pieces():
        piece = unwrapper.unwrap(wrapped)
        is_of_vllm = is_of_vllm or bool(_OF_VLLM.search(piece))
        if size < _VERSIONS_WITHIN:
            versions = _read_versions(piece[:_VERSIONS_WITHIN]) | versions
        size += len(piece)
        if size > _UNLIKE and not is_of_vllm:
            break
        for part, begins in _split_boots(piece):
            if begins and boot.began:
                failed = boot if boot.diagnose() else failed
                boot = _Boot()
            boot.read(part)
    diagnosis = boot.diagnose()
    if diagnosis is None and failed is not None:
        boot, diagnosis = failed, failed.diagnose()
    is_explained = (
        diagnosis is not None and diagnosis.kind not in {UNKNOWN, NO_FAILURE} and boot.state.line_count <= _FRAGMENT
    )
    if not is_of_vllm and not is_explained:
        raise UsageError(f"{source.name} is not a log of vLLM", hint=f"looked for {_LOOKED_FOR}")
    return _build_explanation(boot, diagnosis, versions, tuple(source.notes))


def _build_explanation(
    boot: _Boot, diagnosis: Diagnosis | None, versions: dict[str, str], notes: tuple[str, ...]
) -> Explanation:
    logged = boot.state.startup.facts.get("vllm", ())
    versions = {"vllm": logged[0]} | versions if logged else versions
    explanation = (
        boot.explain_silence()
        if diagnosis is None
        else Explanation(
            kind=diagnosis.kind,
            cause=diagnosis.cause,
            evidence=diagnosis.evidence,
            fix=diagnosis.fix,
            confidence=diagnosis.confidence,
            phase=name_phase(boot.state),
            process=_PROCESS_NUMBER.sub("", diagnosis.process),
            link=diagnosis.link,
        )
    )
    facts = boot.state.startup.facts
    return msgspec.structs.replace(
        explanation,
        versions=versions,
        figures=_list_figures(boot.state),
        backends={name: ", ".join(facts[name]) for name in ("attention", "moe", "gemm") if name in facts},
        warnings=explanation.warnings if explanation.slow else tuple(map(str, find_log_alarms(boot.state))),
        notes=notes,
    )


def _list_figures(state: RunState) -> dict[str, float]:
    started, speculation = state.initialized, state.logged_speculation
    figures = {
        "engine_init_s": started.seconds if started else None,
        "compilation_s": started.compilation if started else None,
        "acceptance_length": speculation.acceptance_length if speculation else None,
        "acceptance": speculation.accepted / speculation.drafted if speculation and speculation.drafted else None,
    }
    return {name: value for name, value in figures.items() if value is not None}


def _split_boots(piece: bytes) -> Iterator[tuple[bytes, bool]]:
    begin, begins = 0, False
    for match in _BOOT.finditer(piece) if any(words in piece for words in _BOOT_WORDS) else ():
        line = piece.rfind(b"\n", 0, match.start()) + 1
        if line > begin:
            yield piece[begin:line], begins
        begin, begins = line, True
    yield piece[begin:], begins


def _read_versions(text: bytes) -> dict[str, str]:
    versions: dict[str, str] = {}
    for match in _VERSIONS.finditer(text):
        name = match["name"].decode().lower()
        versions.setdefault(_CALLED.get(name, name), match["version"].decode().rstrip("."))
    return versions
