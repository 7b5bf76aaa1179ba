"""Why a run failed: the recordings of real failures, and what the system says."""

from collections.abc import Sequence
from typing import Any

import pytest

from dflash_tui.diagnosis.cause import UNKNOWN, Diagnosis, diagnose_run
from dflash_tui.events import Autopsy, Exited, Health, HealthChanged, MemorySampled, Stopping
from dflash_tui.planning.recipes.recipe import RecipeFailure
from dflash_tui.run_state.state import RunState
from dflash_tui.vllm_output.known_failures import Circumstances
from tests.support import recordings
from tests.support.states import LAUNCHED, fold, read_lines, read_log
from tests.support.values import present

CPU, GPU = "cpu-vllm-0.32.0", "h200-vllm-0.26.0"
OOM = "Out of memory: Killed process 14182 (VLLM::EngineCor) total-vm:31457280kB, anon-rss:23068672kB, file-rss:0kB"


def of(name: str, code: int | None, *before) -> RunState:
    """Return the state of a recorded run that ended with `code`; its log read as a server wrote it."""
    lines = [*recordings.lines(name)]
    return fold(LAUNCHED, *read_lines(lines), *before, Exited(lines[-1][0], code))


def written(*lines: str, code: int | None = 1) -> RunState:
    """Return the state of a run that wrote these lines."""
    return fold(*read_log("\n".join((*lines, ""))), Exited(9.0, code))


def diagnose(state: RunState, failures: Sequence[RecipeFailure] = (), **known: Any) -> Diagnosis:
    return present(diagnose_run(state, failures, **known))


# Written by hand from the raw logs and what their driver saw: exit code, name of the cause, words of the cause, words
# of the line that shows it, words of what to do.
EXPECTED = [
    (f"{CPU}/fail_dflash_bad_target_layers", 0, "spec_width", "do not match",
     "expects 192 concatenated aux hidden features but received 64", "drafter that was trained for this target"),
    (f"{CPU}/fail_eagle3_runtime_crash", 0, UNKNOWN, "unknown to dflash-tui",
     "shape '[-1, 192]' is invalid for input of size 2816", "Read the log"),
    (f"{CPU}/fail_flag", 2, "arguments", "no flag --no-such-flag", "unrecognized arguments", "Remove the flag"),
    (f"{CPU}/fail_max_model_len_config", 1, "max_len", "200000 tokens",
     "max_position_embeddings=32768.0", "Lower --max-model-len"),
    (f"{CPU}/fail_max_model_len_kv", 1, "kv_cache", "32768 tokens needs 0.03 GiB of KV cache, and 0.01 GiB are left",
     "the estimated maximum model length is 8064", "--max-model-len to 8064"),
    (f"{CPU}/fail_mem_util", 1, "memory_taken", "17.61 of 18.96 GiB are free, and the share of 0.99 asks for 18.77 GiB",
     "Available memory on node 0", "Lower --gpu-memory-utilization to 0.91"),
    (f"{CPU}/fail_model_emptydir", 1, "not_found", "/models/emptydir is not a model",
     "Invalid repository ID or local directory specified", "folder that holds a model"),
    (f"{CPU}/fail_model_hub_offline", 1, "hub_offline", "not in the cache",
     "outgoing traffic has been disabled", "HF_HUB_OFFLINE"),
    (f"{CPU}/fail_model_path", 1, "not_found", "/models/nope is not a model", "HFValidationError", "folder"),
    (f"{CPU}/fail_port_in_use", 1, "port_in_use", "uses the port", "[Errno 98] Address already in use", "another port"),
    (f"{CPU}/fail_spec_json", 2, "arguments", "the value of --speculative-config", "{method:dflash}", "value"),
    (f"{CPU}/fail_spec_method", 1, "spec_method", "method dflush", "input_value='dflush'", "0.20 or newer"),
    (f"{CPU}/kill9_core_during", 0, "engine_killed", "engine process was killed", "exited unexpectedly", "dmesg"),
    (f"{CPU}/kill9_core_idle", 0, "engine_killed", "engine process was killed", "exited unexpectedly", "dmesg"),
    (f"{CPU}/kill9_worker_during", 0, "worker_died", "exit code -9",
     "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)", "dmesg"),
    (f"{CPU}/sig_int", 0, "terminated", "received SIGTERM or SIGINT", "shutdown triggered", "Launch again"),
    (f"{CPU}/sig_int_group", 0, "terminated", "received SIGTERM or SIGINT", "shutdown triggered", "Launch again"),
    (f"{CPU}/sig_term_during", 0, "terminated", "received SIGTERM or SIGINT", "shutdown triggered", "Launch again"),
    (f"{CPU}/sig_int_during", -9, "terminated", "received SIGTERM or SIGINT", "shutdown triggered", "Launch again"),
    (f"{CPU}/int_during_1", -9, "terminated", "received SIGTERM or SIGINT", "shutdown triggered", "Launch again"),
    (f"{GPU}/fail-engine-dead-first-request", 0, "missing_module", "the package cutlass",
     "No module named 'cutlass'", "another backend"),
    (f"{GPU}/fail-illegal-memory-access", 1, "device_fault", "accessed memory illegally",
     "an illegal memory access was encountered", "fewer drafted tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "code", "kind", "cause", "evidence", "fix"), EXPECTED)
def test_a_recorded_failure_has_its_cause(name, code, kind, cause, evidence, fix):  # noqa: PLR0917
    """Every recorded failure, kill and signal has the cause that a person finds in its raw log."""
    found = diagnose(of(name, code))
    assert (found.kind, cause in found.cause, evidence in found.evidence[0]) == (kind, True, True), found
    assert fix in " ".join(found.fix)
    assert "EngineDeadError" not in f"{found.cause}{found.evidence}"


ADVISED = {
    "nobody knows": "RuntimeError: CUDA error: something that no table has",
    "known": "torch.AcceleratorError: CUDA error: misaligned address",
}


@pytest.mark.parametrize("name", ADVISED)
@pytest.mark.parametrize("way", ["not", "by its plan", "by its log"])
def test_eager_mode_is_advised_unless_already_tried(name, way):
    said = ["Enforce eager set, disabling torch.compile and CUDAGraphs."] * (way == "by its log")
    found = present(
        diagnose_run(written(*said, ADVISED[name]), circumstances=Circumstances(eager=way == "by its plan"))
    )
    assert ("--enforce-eager" in " ".join(found.fix)) is (way == "not")


def test_every_recorded_failure_is_expected():
    """No recording of a failure is left out of the table above."""
    failing = {name for name in recordings.names() if any(word in name for word in ("fail", "kill9", "sig_", "int_"))}
    assert failing == {name for name, *_ in EXPECTED}


@pytest.mark.parametrize("name", [f"{CPU}/dflash", f"{CPU}/sig_term_during"])
def test_requested_stop_is_no_failure(name):
    """What dflash-tui was asked to end did not fail, whatever the log says."""
    assert diagnose_run(of(name, 0, Stopping(1.0))) is None


def test_unrequested_exit_code_0_is_failure(snapshot):
    """A server whose engine died ends with 0."""
    found = diagnose(of(f"{CPU}/kill9_core_idle", 0))
    assert found.what == snapshot


def test_the_word_of_the_kernel_comes_first(snapshot):
    """A line of the kernel about our process is the cause, and the log's symptoms are not."""
    memory = [MemorySampled(at, used << 30, 24 << 30, "resident") for at, used in ((40.0, 22), (47.0, 1))]
    state = of(f"{CPU}/kill9_core_idle", 0, *memory, Autopsy(49.0, (OOM,), 1))
    found = diagnose(state)
    assert (found.kind, found.evidence[0]) == ("oom_killed", OOM)
    assert found.evidence[1] == snapshot


@pytest.mark.parametrize(("used", "kills", "expected"), [(22, 0, True), (2, 1, True), (2, 0, False)])
def test_memory_shortage_is_claimed_only_with_evidence(used, kills, expected):
    """Without the kernel's lines its count or a nearly full memory speaks for it; else nothing is supposed."""
    memory = MemorySampled(47.0, used << 30, 24 << 30, "resident")
    found = present(diagnose_run(of(f"{CPU}/kill9_core_idle", 0, memory, Autopsy(49.0, (), kills))))
    assert ("out of memory" in found.cause) is expected


@pytest.mark.parametrize(
    ("code", "kind", "name"),
    [(137, "killed", "SIGKILL"), (-11, "crashed", "SIGSEGV")],
)
def test_a_signal_is_named(code, kind, name):
    """A log that ends in the middle is explained by the signal that ended it."""
    found = diagnose(written("INFO 11-21 01:00:00 [x.py:1] all is well", code=code))
    assert (found.kind, name in found.what) == (kind, True)


@pytest.mark.parametrize("code", [None, 1])
def test_silent_exit_is_called_unknown(code):
    """Nothing is invented; the last lines are shown."""
    found = diagnose(written("INFO 11-21 01:00:00 [x.py:1] all is well", code=code))
    assert (found.kind, found.evidence) == (UNKNOWN, ("all is well",))


def test_gpu_fault_shows_driver_then_vllm_error():
    """The driver's line comes first, vLLM's own below it."""
    xid = "NVRM: Xid (PCI:0000:01:00): 31, pid=827, name=VLLM::EngineCor, Ch 00000008"
    found = present(diagnose_run(of(f"{GPU}/fail-illegal-memory-access", 1, Autopsy(99.0, (xid,), None))))
    assert (found.kind, found.evidence[0]) == ("gpu_fault", xid)
    assert "illegal memory access" in found.evidence[1]


BAD_REQUEST = """\
ERROR 01-01 00:01:00 [serving.py:10] Traceback (most recent call last):
ERROR 01-01 00:01:00 [serving.py:10]   File "/x/vllm/entrypoints/renderer.py", line 3, in render
ERROR 01-01 00:01:00 [serving.py:10] ValueError: This model's maximum context length is 512 tokens.
"""
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
DAY = 86_400.0


def served(log: str, code: int, end: float) -> RunState:
    """Return the state of a server that was up, wrote `log` and ended `end` seconds after its launch."""
    started = "INFO 01-01 00:00:30 [x.py:1] Application startup complete.\n"
    state = fold(LAUNCHED, *read_log(f"{started}{log}"))
    assert state.up_at is not None
    state.apply(Exited(end, code))
    return state


def test_old_bad_request_does_not_explain_kill():
    """What a server has survived for a day is not why it ended."""
    found = diagnose(served(BAD_REQUEST, -9, 60 + DAY))
    assert (found.kind, "maximum context" in str(found.evidence)) == ("killed", False)


def test_final_cause_outranks_earlier_errors():
    """Thousands of bad requests, known or not, hide no later cause, and what follows from that hides it neither."""
    log = (BAD_REQUEST + "ERROR 01-01 00:01:00 [x.py:1] OSError: [Errno 24] Too many open files\n") * 1000
    log += f"ERROR 01-02 00:00:01 [core.py:1] {OUT_OF_MEMORY}\n"
    log += "ERROR 01-02 00:00:01 [x.py:1] vllm.v1.engine.exceptions.EngineDeadError: see above\n" * 300
    log += "ERROR 01-02 00:00:05 [x.py:1] Worker proc VllmWorker-0 died unexpectedly (exit code: 1)\n"
    found = diagnose(served(log, 1, DAY + 8))
    assert (found.kind, found.evidence) == ("out_of_memory", (OUT_OF_MEMORY,))


def test_unknown_exception_explains_exit_right_after_it():
    """The same exception a moment before the end is the best there is, and its frame is the one above it."""
    later = BAD_REQUEST.replace("01-01 00:01:00", "01-02 00:00:00").replace("renderer.py", "other.py")
    found = diagnose(served(BAD_REQUEST + later, 1, DAY + 5))
    assert (found.kind, "maximum context" in found.evidence[0], "other.py" in found.evidence[1]) == (
        UNKNOWN,
        True,
        True,
    )


def test_recipe_failure_precedes_table():
    """A recipe's own cause and fix stand before the table's."""
    known = RecipeFailure(
        sign="CUDA out of memory", cause="32768 batched tokens are too many", fix="--set x=1", link="https://a"
    )
    state = written("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    found = present(diagnose_run(state, (RecipeFailure(sign="(broken", cause="no", fix="no"), known)))
    assert (found.kind, found.cause, found.link) == ("out_of_memory", known.cause, "https://a")
    assert [fix[:27] for fix in found.fix] == ["the recipe says: --set x=1", "Lower --gpu-memory-utilizat"]
    other = RecipeFailure(sign="Can't pickle <function", cause="the compile cache", fix="empty it")
    found = present(
        diagnose_run(written("Can't pickle <function launcher at 0x7>: it's not the same object"), (other,))
    )
    assert (found.kind, found.cause) == ("recipe", "the compile cache")


@pytest.mark.parametrize(
    ("sign", "shows"),
    [("(broken", True), ("FLASH.*of memory", True), ("of memory.*FLASH", False), ("(.+\\s?)+$x", False)],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_recipe_failure_sign_matches_text_with_gaps(sign, shows):
    """A shared recipe cannot make a diagnosis fail or last for ever; a gap stays in its line."""
    text = "ValueError: FLASH (broken is out of memory " + "a" * 4000 + "\nthe other line"
    failure = RecipeFailure(sign=sign, cause="the recipe knows", fix="no")
    diagnosis = diagnose(written(text), (failure,))
    assert (diagnosis.cause == "the recipe knows") == shows


def test_unhealthy_running_server_is_explained(snapshot):
    """Unhealthy is no end: the answer is the evidence."""
    found = diagnose(fold(LAUNCHED, HealthChanged(3.0, Health.UNHEALTHY, "HTTP 400: no")))
    assert found.evidence == ("HTTP 400: no",)
    assert found.what == snapshot


def test_killed_idle_worker_is_cause(snapshot):
    """As vLLM 0.32.0 wrote it: it asks for the exit code before there is one, and its own error follows from that."""
    core = "(EngineCore pid=19711) ERROR 11-22 08:31:33"
    said = f"{core} [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly (exit code: None)"
    after = f"{core} [core.py:1512] RuntimeError: Executor failed."
    found = diagnose(written("INFO:     Application startup complete.", said, after, code=0))
    assert (found.kind, found.cause) == ("worker_died", snapshot)
    assert "(exit code: None)" in found.evidence[0]
