"""Errors are put together from their lines: tracebacks, messages of several lines, several processes at once."""

import random

import pytest

from dflash_tui.events import Problem
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support.states import fold, read_log

TRACEBACK = """\
Traceback (most recent call last):
  File "/x/vllm/v1/engine/core.py", line 9, in run
    raise ValueError("CUDA out of memory")
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/x/vllm/v1/worker/gpu_worker.py", line 7, in load
    raise RuntimeError("No space left on device")
ValueError: nobody knows this
"""


def problems(log: str) -> list[Problem]:
    """Return what the state of a run keeps of a log's errors."""
    return list(fold(*read_log(log)).problems)


@pytest.mark.parametrize(
    "prefix",
    ["", "(EngineCore_DP0 pid=120) ERROR 01-28 06:36:45 [core.py:946] ", "(RayWorkerWrapper pid=880, ip=10.0.0.2) "],
)
def test_a_source_line_is_no_error(prefix):
    """However the lines begin; the frames above the message say where it was raised, the innermost last."""
    [problem] = problems("".join(f"{prefix}{line}\n" for line in TRACEBACK.splitlines()))
    assert (problem.text, problem.kind) == ("ValueError: nobody knows this", "")
    assert [frame.rpartition(" ")[2] for frame in problem.frames] == ["run", "load"]


@pytest.mark.parametrize(
    ("prefix", "process"),
    [
        ("(VllmWorker rank=3 pid=1090) ERROR 06-05 06:18:13 [x.py:470] ", "VllmWorker rank=3 pid=1090"),
        ("[rank7]: ", "rank7"),
        ("", ""),
    ],
)
def test_problem_names_failed_process(prefix, process):
    [problem] = problems(f"{prefix}RuntimeError: Could not find nvcc\n")
    assert (problem.kind, problem.process) == ("nvcc", process)


def test_mixed_process_lines_keep_their_own_tracebacks():
    """Each keeps its own traceback."""
    ways = [[f"(Worker_TP{rank} pid={rank}) {line}" for line in TRACEBACK.splitlines()] for rank in range(4)]
    generator, mixed = random.Random(4), []
    while any(ways):
        way = generator.choice([each for each in ways if each])
        mixed.append(way.pop(0))
    told = problems("\n".join((*mixed, "")))
    assert sorted(problem.process for problem in told) == [f"Worker_TP{rank} pid={rank}" for rank in range(4)]
    assert {(problem.text, len(problem.frames)) for problem in told} == {("ValueError: nobody knows this", 2)}


def test_a_message_of_several_lines_is_whole():
    """Up to a blank line, another record or another error; what CUDA adds to every message is not a part of it."""
    head = "(EngineCore pid=7) "
    log = [
        "ValueError: Failed to find a kernel that can implement the WNA16 linear layer. Reasons: ",
        " MacheteLinearKernel cannot implement due to: group size",
        "CUDA kernel errors might be asynchronously reported at some other API call",
        " MarlinLinearKernel cannot implement due to: capability",
        "",
        " not a part of it",
    ]
    [problem] = problems("".join(f"{head}{line}\n" for line in log))
    assert problem.text.split("\n") == [log[0].strip(), log[1].strip(), log[3].strip()]
    assert problem.kind == "kernel"


def test_next_log_record_is_not_in_message():
    """Another file of vLLM logged it."""
    head = "(A pid=1) ERROR 01-01 00:00:00"
    told = problems(f"{head} [a.py:1] ValueError: x\n{head} [b.py:1] something else\n")
    assert [problem.text for problem in told] == ["ValueError: x"]


def test_a_message_without_end_is_bounded():
    """Whatever a server writes after an error."""
    [problem] = problems("(A pid=1) ValueError: nobody knows\n" + "(A pid=1) more of it\n" * 10_000)
    assert problem.text.count("\n") < 100
    head = "(A pid=1) ValueError: "
    [problem] = problems(
        head + "\n".join([f"{head if not at else '(A pid=1) '}{'x' * 1900}" for at in range(50)]) + "\n"
    )
    assert len(problem.text) < 10_000


def test_a_thousand_processes_are_bounded():
    """Names of processes come from the log, and so do not fill the memory."""
    reader = LogReader(0.0, 0.0)
    for number in range(2000):
        reader.feed(
            f'(X pid={number}) Traceback (most recent call last):\n(X pid={number})   File "a", line 1\n'.encode()
        )
    assert len(reader._errors._places) <= 100


def test_ignored_exception_is_no_problem():
    """As Python says it of destructors, with its traceback."""
    assert problems("Exception ignored in: <function X>\n" + TRACEBACK) == []
    assert len(problems("Exception ignored in: <function X>\n" + TRACEBACK + "\n" + TRACEBACK)) == 1


def test_a_warning_of_torch_is_no_problem():
    """Its own form has a letter for the level."""
    line = "[rank0]:[{}309 12:56:45.480623726 ProcessGroupNCCL.cpp:616] CUDA error: misaligned address\n"
    assert problems(line.format("W")) == []
    [problem] = problems(line.format("E"))
    assert (problem.kind, problem.process) == ("device_fault", "rank0")
