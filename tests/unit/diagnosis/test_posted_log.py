"""A log without a run: what users posted, what was recorded, and what is no log at all."""

import contextlib
import os
import re
import threading
from pathlib import Path

import pytest

from dflash_tui.common.errors import UsageError
from dflash_tui.diagnosis import log_source
from dflash_tui.diagnosis.explanation import NO_FAILURE, Explanation, format_explanation
from dflash_tui.diagnosis.log_source import LogSource
from dflash_tui.diagnosis.posted_log import explain_log
from tests.support import recordings
from tests.support.log_formats import NO_FP4

UP = "INFO:     Application startup complete.\n"
NO_NVCC = "RuntimeError: Could not find nvcc\n"
ENDED = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"


@pytest.fixture
def explain(tmp_path):
    """Return the function that explains a text."""

    def explained(text: str | bytes) -> Explanation:
        file = tmp_path / "x.log"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return explain_log(LogSource(str(file)))

    return explained


# The lines that decide, of logs that users posted, where they are more or others than those of known_failures.yaml;
# where: an issue of vllm-project/vllm, or the repository named. Then the kind, and words of what to do.
POSTED = [
    ("#25797", "KeyError: 'layers.45.mlp.shared_expert.down_proj.weight'", "weights_names", "newer vLLM"),
    ("#19504", "subprocess.CalledProcessError: Command '['/usr/bin/python3', '-m', "
     "*vllm.model_executor.models.registry')'"
     "\nRuntimeError: Error raised in subprocess:\nKeyError: 'getpwuid(): uid not found: 1001'", "no_user", "HOME"),
    ("#50708", "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
     "  Value error, max_num_scheduled_tokens is set to -1792, which does not allow any tokens to be scheduled",
     "token_budget", "max-num-batched-tokens"),
    ("#19991", "ERROR 06-22 15:12:27 [engine.py:458]     assert param.size() == loaded_weight.size(), (\n"
     "ERROR 06-22 15:12:27 [engine.py:458] AssertionError: Attempted to load weight (torch.Size([4096, 12288])) into "
     "parameter (torch.Size([4096, 8192]))", "weights_shape", "drafter"),
    ("#14535", "(VllmWorkerProcess pid=4821) ERROR 03-10 11:30:29 multiproc_worker_utils.py:242]     raise "
     "RuntimeError(\n"
     "(VllmWorkerProcess pid=4821) ERROR 03-10 11:30:29 multiproc_worker_utils.py:242] RuntimeError: Cannot "
     "re-initialize "
     "CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method", "forked",
     "VLLM_WORKER_MULTIPROC_METHOD=spawn"),
    ("gpustack/gpustack#1510", '  File "/x/transformers/models/auto/configuration_auto.py", line 794, in __getitem__\n'
     "    raise KeyError(key)\nKeyError: 'gemma3'", "architecture", "transformers"),
    ("#16707", "(RayWorkerWrapper pid=880) ERROR 04-16 01:01:44 [worker_base.py:620]     raise RuntimeError(f\"NCCL "
     "error: {e}\")\n(RayWorkerWrapper pid=880) ERROR 04-16 01:01:44 [worker_base.py:620] RuntimeError: NCCL error: "
     "unhandled system error (run with NCCL_DEBUG=INFO for details) [repeated 6x across cluster]",
     "nccl", "NCCL_DEBUG"),
    ("#18580", "torch._dynamo.exc.BackendCompilerFailed: backend='x' raised:\nRuntimeError: Triton Error [CUDA]: "
     "device kernel image is invalid", "wrong_build", "driver"),
    ("#20657", "ERROR 11-08 11:01:29 [multiproc_executor.py:135] Worker proc VllmWorker-2 died unexpectedly, "
     "shutting down executor.\nRuntimeError: Executor failed.", "worker_died", "dmesg"),
    ("#50705", "(EngineCore pid=4140) Failed to get device capability: SM 12.x requires CUDA >= 12.9.\n"
     "(EngineCore pid=4140) ERROR 08-03 17:46:55 [core.py:1231] RuntimeError: FlashInfer requires GPUs with sm75 or "
     "higher", "nvcc_old", "CUDA_HOME"),
    ("#47387", "WARNING 05-22 10:02:31 [interface.py:729] Using 'pin_memory=False' as WSL is detected.\n"
     "(EngineCore pid=99) ERROR 05-22 10:02:41 [core.py:1100] RuntimeError: UVA is not available", "wsl_memory",
     "VLLM_WSL2_ENABLE_PIN_MEMORY=1"),
    ("vllm-project/recipes#51", '(APIServer pid=9)     raise KeyError(f"invalid tool call parser: {args.parser} "\n'
     "(APIServer pid=9) KeyError: 'invalid tool call parser: openai (chose from { hermes, qwen3_coder })'",
     "parser_name", "--tool-call-parser"),
    ("#30163", "(RayWorkerWrapper pid=581, ip=10.0.0.2) ERROR 12-06 10:00:00 [worker_base.py:301] RuntimeError: [FP4 "
     "gemm Runner] Failed to run cutlass FP4 gemm on sm120. Error: Error Internal", "kernel", "--linear-backend"),
    ("vllm-project/vllm-ascend#780", "ERROR 05-07 05:58:46 core.py:291] AssertionError: Torch not compiled with CUDA "
     "enabled\nCRITICAL 05-07 05:58:46 core_client.py:191] Got fatal signal from worker processes, shutting down.\n"
     "Killed", "wrong_build", "Reinstall"),
    ("flashinfer-ai/flashinfer#1532", "subprocess.CalledProcessError: Command '['ninja', '-v', '-C', '/x']' returned "
     "non-zero exit status 1.\nRuntimeError: Ninja build failed. Ninja output:\n"
     "nvcc fatal   : Unknown option '-static-global-template-stub=false'", "nvcc_old", "CUDA_HOME"),
    ("#54237", "(Worker_TP1 pid=15) ERROR 09-09 21:43:12 [x.py:1055] RuntimeError: Ninja build failed. Ninja output:\n"
     "(Worker_TP1 pid=15) ERROR 09-09 21:43:12 [x.py:1055] nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
     "host_memory", "MAX_JOBS"),
    ("#9312", "api_server.py: error: argument --tool-call-parser: invalid choice: 'llama3_json' (choose from 'hermes')",
     "arguments", "Correct"),
]  # fmt: skip


@pytest.mark.parametrize("wrapping", ["{}", "Nov 22 10:00:00 spark vllm[1]: {}"])
def test_posted_logs_are_explained(explain, wrapping):
    """Root before symptom, with its line in full and what to do; wherever it ran."""
    for where, lines, kind, fix in POSTED:
        wrapped = "".join(f"{wrapping.format(line)}\n" for line in (lines + "\n" + ENDED).splitlines())
        found = explain(wrapped)
        assert (found.kind, fix in " ".join(found.fix)) == (kind, True), where
        assert found.evidence[0] in lines, where
        assert not found.evidence[0].startswith(("raise", "assert", "File")), where


def test_a_healthy_log_names_its_kernels(explain):
    """Those of the NVIDIA forum's thread 366445: the healthy ones, and the fallback that it asks about."""
    stamp = "(EngineCore pid=108) INFO 04-14 12:41:13 [x.py:34]"
    kernels = "Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM", "Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend"
    healthy = explain("".join(f"{stamp} {line}\n" for line in kernels) + UP)
    wanted = {"moe": "FLASHINFER_CUTLASS NvFp4", "gemm": "FlashInferCutlassNvFp4LinearKernel"}
    assert (healthy.kind, healthy.backends, healthy.warnings) == (NO_FAILURE, wanted, ())
    marlin = explain(f"{stamp} Using 'MARLIN' NvFp4 MoE backend out of x\n{stamp} {NO_FP4}\n{UP}")
    assert marlin.backends == {"moe": "MARLIN NvFp4"}
    assert (marlin.kind, marlin.slow, marlin.evidence) == ("kernels", True, (NO_FP4,))
    told = format_explanation(marlin, 100)
    assert ("MoE MARLIN NvFp4" in told, "! FP4 weights run on Marlin" in told) == (True, True)


def test_advice_without_recipe_names_no_recipe(explain):
    """What the recipe pins is vLLM's own image here, also for an error that nobody knows."""
    for line in ("ImportError: x.so: undefined symbol: y", "(EngineCore pid=1) ImportError: cannot import x"):
        words = " ".join(explain(f"{line}\n{ENDED}").fix)
        assert ("vllm/vllm-openai" in words, "recipe" in words, "--report" in words) == (True, False, False)


def test_fitting_memory_share_is_advised(explain):
    taken = "ValueError: Free memory on device cuda:0 ({}/121.69 GiB) on startup is less than desired GPU memory " \
            "utilization (0.91, 110.74 GiB)\n"  # fmt: skip
    for free, share in (("109.53", "--gpu-memory-utilization to 0.88"), ("0.1", "to less"), ("1.2.3", "to less")):
        assert share in " ".join(explain(taken.format(free)).fix)


def test_shell_kill_message_is_last_resort_cause(explain):
    """VLLM kills itself when its engine failed."""
    assert explain(f"{UP}Killed\n").kind == "oom_killed"
    assert explain("(EngineCore pid=1) ValueError: nobody knows\nKilled\n").kind == "unknown"


def test_unknown_error_shows_frames_and_guessed_area(explain):
    """The innermost exception of the chain, its last three frames of vLLM, torch and transformers, and the area."""
    frames = "".join(
        f'(EngineCore pid=2)   File "/x/site-packages/{file}", line {at}, in f{at}\n(EngineCore pid=2)     call()\n'
        for at, file in enumerate(["vllm/a.py", "vllm/b.py", "torch/c.py", "other/d.py", "vllm/model_loader/e.py"])
    )
    found = explain(
        f"(EngineCore pid=2) Traceback (most recent call last):\n{frames}(EngineCore pid=2) ValueError: never seen "
        f"before\n\n"
        "(EngineCore pid=2) The above exception was the direct cause of the following exception:\n\n"
        f"(EngineCore pid=2) Traceback (most recent call last):\n{frames}(EngineCore pid=2) RuntimeError: "
        f"neither\n{ENDED}"
    )
    assert (found.kind, found.confidence, found.process) == ("unknown", "guess", "EngineCore")
    assert "loading the weights" in found.cause
    assert "never seen before" in found.cause
    assert [line.rpartition(" ")[2] for line in found.evidence[1:]] == ["f4", "f2", "f1"]


def test_the_earliest_process_that_failed_is_named(explain):
    """What the others say of it comes later."""
    found = explain(
        "(Worker_TP3 pid=7) ERROR 03-31 18:15:56 [x.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to "
        "allocate "
        "2.00 GiB. GPU 3 has a total capacity of 23.56 GiB of which 21.75 MiB is free.\n"
        "(Worker_TP0 pid=4) ERROR 03-31 18:15:57 [x.py:1] RuntimeError: NCCL error: remote process exited\n" + ENDED
    )
    assert (found.kind, found.process) == ("out_of_memory", "Worker_TP3")
    assert ("2.00 GiB" in found.cause, "21.75 MiB" in found.cause) == (True, True)


@pytest.mark.parametrize(
    ("above", "kind"),
    [
        ("Fatal Python error: Segmentation fault\n", "crashed"),
        ("terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: misaligned address\n",
         "device_fault"),
        ("", "engine_died"),
    ],
)  # fmt: skip
def test_dead_engine_message_alone_proves_no_kill(explain, above, kind):
    """What stands above says more; without it both a kill and a crash are possible."""
    dead = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above).\n"
    assert explain(UP + above + dead).kind == kind


def test_only_recorded_failures_are_called_failures(explain):
    """And a server that did well, or was asked to stop, shows no failure."""
    for name in recordings.names():
        found = explain(recordings.raw(name))
        failed = re.search(r"/(?:fail|kill9)", name) is not None
        assert (found.kind == NO_FAILURE) is not failed, name
        assert failed or found.phase in {"up", "api"}, name


def test_server_that_kept_serving_did_not_fail(explain):
    """Neither by a bad request nor by a known error that it survived."""
    served = '(APIServer pid=1) INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    bad = "ERROR 01-01 00:01:00 [serving.py:10] ValueError: This model's maximum context length is 512 tokens.\n"
    known = "ERROR 01-01 00:01:00 [x.py:1] OSError: [Errno 24] Too many open files\n"
    head = "INFO 01-01 00:00:00 [x.py:1] x\n" + UP
    assert explain(head + served + bad).kind == NO_FAILURE
    assert explain(head + known + served * 5).kind == NO_FAILURE
    assert explain(head + served * 5 + known).kind == "open_files"


def test_last_failed_start_in_log_is_explained(explain):
    """As in the log of a container that is started again and again; a start that still goes on hides nothing."""
    boot = "(APIServer pid=1) INFO 11-22 10:00:00 [api_server.py:1] vLLM API server version 0.19.0\n"
    first = f"{boot}ValueError: No available memory for the cache blocks.\n"
    second = f"{boot}OSError: [Errno 98] Address already in use\n"
    assert explain(first + second).kind == "port_in_use"
    assert explain(second + first + boot).kind == "kv_cache"
    assert explain(second + first + boot + UP).kind == "kv_cache"
    assert explain(first).versions == {"vllm": "0.19.0"}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("(Worker pid=2) INFO 11-22 10:00:00 [pynccl.py:1] vLLM is using nccl==2.27.3", "waits_for_nccl"),
        (
            "(EngineCore pid=2) INFO 11-22 10:00:00 [x.py:1] No available shared memory broadcast block found in 60 "
            "second.",
            "waits_for_worker",
        ),
        ("(EngineCore pid=2) INFO 11-22 10:00:00 [x.py:1] Starting to load model x...", NO_FAILURE),
    ],
)
def test_silent_log_end_names_awaited_step(explain, line, kind):
    found = explain(
        f"{line}\n/usr/lib/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked\n"
    )
    assert (found.kind, found.confidence) == (kind, "likely")


def test_fixed_release_is_named_unless_already_running(explain):
    line = "RuntimeError: Model does not support EAGLE3 interface but aux_hidden_state_outputs was requested\n"
    engine = "(EngineCore pid=1) INFO 11-22 10:00:00 [core.py:1] Initializing a V1 LLM engine (v{}) with config: x\n"
    assert "0.24.0" in " ".join(explain(line).fix)
    assert "0.24.0" in " ".join(explain(engine.format("0.23.0") + line).fix)
    assert "0.24.0" not in " ".join(explain(engine.format("0.26.0") + line).fix)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(range(256)) * 100,
        b"root:x:0:0:root:/root:/bin/bash\n" * 30,
        b"Traceback (most recent call last):\n  File \"/srv/django/x.py\", line 3\nKeyError: 'x'\n",
    ],
)
def test_invalid_log_is_refused(explain, content):
    """In one sentence, with exit code 2."""
    with pytest.raises(UsageError) as error:
        explain(content)
    assert error.value.exit_code == 2
    assert "\n" not in error.value.what


@pytest.mark.parametrize("name", ["/nope/x.log", "/dev/zero"])
def test_invalid_file_is_refused(name):
    with pytest.raises(UsageError):
        explain_log(LogSource(name))


def test_large_file_is_read_at_both_ends(tmp_path, monkeypatch):
    """The answer says so."""
    monkeypatch.setattr(log_source, "_LARGEST_FILE", 4 << 20)
    monkeypatch.setattr(log_source, "_HEAD", 1 << 20)
    file = Path(tmp_path / "x.log")
    file.write_bytes(
        b"(APIServer pid=1) INFO 11-22 10:00:00 [x.py:1] vLLM API server version 0.19.0\n"
        + b"INFO 11-22 10:00:00 [x.py:1] all is well\n" * 300_000
        + NO_NVCC.encode()
    )
    found = explain_log(LogSource(str(file)))
    assert (found.kind, found.versions, len(found.notes)) == ("nvcc", {"vllm": "0.19.0"}, 1)


class Pipe:
    """A pipe that something writes into, named as a file."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()
        self.name = f"/proc/self/fd/{self.reads}"

    def close(self) -> None:
        os.close(self.reads)
        os.close(self.writes)


@pytest.fixture
def pipe(monkeypatch):
    monkeypatch.setattr(log_source, "_SILENCE", 0.2)
    made = Pipe()
    yield made
    made.close()


def test_a_pipe_that_goes_silent_is_explained(pipe):
    """The writer may never end, as `docker logs -f`."""
    os.write(pipe.writes, NO_NVCC.encode())
    found = explain_log(LogSource(pipe.name))
    assert (found.kind, len(found.notes)) == ("nvcc", 1)


def test_a_pipe_without_a_word_is_refused(pipe):
    with pytest.raises(UsageError):
        explain_log(LogSource(pipe.name))


def test_a_pipe_that_never_ends_is_left(pipe, monkeypatch):
    monkeypatch.setattr(log_source, "_MOST_SECONDS", 1.0)

    def write() -> None:
        with contextlib.suppress(OSError):  # the reader has gone
            while True:
                os.write(pipe.writes, b"INFO 11-22 10:00:00 [x.py:1] all is well\n" * 1000)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    found = explain_log(LogSource(pipe.name))
    assert (found.kind, len(found.notes)) == (NO_FAILURE, 1)
    os.close(pipe.reads)
    writer.join(10)
    assert not writer.is_alive()
    pipe.reads = os.open(os.devnull, os.O_RDONLY)


_HEAD, _OWN = "1--1--1--1--1--1--1--1--Z ", "INFO 11-22 10:00:00 [core.py:1] hi\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "line",
    ["█" * 300_000, f"torch{' ' * 250_000}x", f"({'pid=1' * 24_000}"],
)
def test_no_line_keeps_a_core_busy(explain, line):
    """Each took minutes, or for ever, where a pattern looked back and forth in it."""
    assert explain(_OWN + line + "\n" + _OWN).kind == NO_FAILURE
    assert explain((_HEAD + _OWN) * 40 + line + "\n" + _HEAD + _OWN).kind == NO_FAILURE


def test_reading_growing_file_comes_to_an_end(tmp_path, monkeypatch):
    """The log of a server that still runs; what is there when it is read is explained."""
    monkeypatch.setattr(log_source, "_PIECE", 1 << 10)
    file, line = tmp_path / "server.log", b"INFO 11-22 10:00:00 [core.py:1] nothing is wrong\n"
    file.write_bytes(line * 2000)
    size = file.stat().st_size
    with file.open("ab") as growing:
        for piece in LogSource(str(file)).read_pieces():
            growing.write(2 * piece)
            growing.flush()
            assert growing.tell() < 10 * size


def test_rest_of_cut_line_is_no_line(tmp_path, monkeypatch):
    """Neither where it was too long, nor behind what was left out of a very large file."""
    monkeypatch.setattr(log_source, "_PIECE", 1 << 12)
    monkeypatch.setattr(log_source, "_LOOKED_AT", 1 << 10)
    file = tmp_path / "server.log"
    file.write_bytes(f"first\n{'x' * (1 << 14)}the rest\nlast\n".encode())
    lines = b"".join(LogSource(str(file)).read_pieces()).splitlines()
    assert (lines[0], lines[2:]) == (b"first", [b"last"])
    monkeypatch.setattr(log_source, "_LARGEST_FILE", 1 << 14)
    monkeypatch.setattr(log_source, "_HEAD", 1 << 12)
    long_line = "y" * 99 + "\n"
    file.write_bytes(f"{long_line * 1000}".encode())
    lines = b"".join(LogSource(str(file)).read_pieces()).splitlines()
    assert set(lines) == {b"y" * 99}


SPECULATION = (
    "(APIServer pid=1) INFO 05-01 14:24:50 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: {}, Accepted "
    "throughput: 8.90 tokens/s, Drafted throughput: 97.50 tokens/s, Accepted: {} tokens, Drafted: {} tokens, "
    "Per-position acceptance rate: {}, Avg Draft acceptance rate: {}%\n"
)
PADDING = (
    "WARNING 06-23 10:27:23 [kv_cache_utils.py:1152] Add 6 padding layers, may waste at most {}% KV cache memory\n"
)


@pytest.mark.parametrize(
    ("text", "kind", "fix"),
    [
        (SPECULATION.format(1.0, 0, 400, "0.000, 0.000", "0.0"), "acceptance", "MTP head"),
        (
            SPECULATION.format(2.4, 89, 975, "0.6, 0.4, 0.2" + ", 0.0" * 12, "9.1"),
            "positions",
            "tokens=3",
        ),
        (SPECULATION.format(2.4, 8, 97, "0.6, 0.4, 0.2" + ", 0.0" * 12, "9.1"), NO_FAILURE, ""),
        (PADDING.format("60.00") + UP, "kv padding", "gpu-memory-utilization"),
        (PADDING.format("6.67") + UP, NO_FAILURE, ""),
    ],
)
def test_slow_servers_are_named(explain, text, kind, fix):
    """Few steps, and positions that are accepted now and then, accuse no server."""
    explanation = explain(text)
    assert explanation.kind == kind
    assert fix in " ".join(explanation.fix)
    assert format_explanation(explanation, 100)[0] == ("✓" if kind == NO_FAILURE else "!")


def test_a_log_of_powershell_is_read(explain):
    """Its redirection writes UTF-16."""
    text = f"{ENDED}{NO_NVCC}"
    assert [explain(text.encode(form)).kind for form in ("utf-16", "utf-8")] == ["nvcc", "nvcc"]
