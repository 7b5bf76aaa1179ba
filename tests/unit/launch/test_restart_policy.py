"""Whether a server that died is launched again, and how that is asked for."""

import pytest

from dflash_tui.common.errors import UsageError
from dflash_tui.launch import session
from dflash_tui.planning.recipes.recipe import RestartPolicy
from dflash_tui.presentation.plan_text import format_restart
from dflash_tui.run_state.state import RunState
from tests.support.plans import plan_of, resolve

POLICY = RestartPolicy(times=2, within_s=100, wait_s=10)
SERVED, NEVER = RunState(warm_at=5.0), RunState()


@pytest.mark.parametrize(
    ("state", "kind", "earlier", "again"),
    [
        (SERVED, "engine_killed", [], True),
        (SERVED, "out_of_memory", [], True),
        (SERVED, "terminated", [], False),
        (NEVER, "out_of_memory", [], False),
        (NEVER, "arguments", [], False),
        (NEVER, "unknown", [], True),
        (NEVER, "oom_killed", [], True),
        (SERVED, "killed", [950.0], True),
        (SERVED, "killed", [930.0, 950.0], False),
        (SERVED, "killed", [899.0, 950.0], True),
    ],
)
def test_restart_follows_policy(state, kind, earlier, again):
    """What served, or died by chance, and not too often lately; no server that somebody ended."""
    assert bool(session.explain_no_restart(POLICY, state, kind, earlier, 1000.0)) is not again


def test_the_wait_doubles_and_has_an_end():
    """Only the restarts of the window count; five minutes are the most, unless more was asked for."""
    assert [session.restart_delay(POLICY, [950.0] * n, 1000.0) for n in (0, 1, 2, 3)] == [10, 20, 40, 80]
    assert session.restart_delay(POLICY, [1.0, 2.0], 1000.0) == 10
    assert session.restart_delay(POLICY, [950.0] * 900, 1000.0) == 300
    assert session.restart_delay(RestartPolicy(times=9, wait_s=1000), [999.0], 1000.0) == 1000


def test_it_is_off_unless_asked_for(snapshot):
    """`--set` changes one key of it, null is its usual value, and the plan records and tells it."""
    usual = plan_of("demo-cpu")
    assert (usual.restart, format_restart(usual.restart)) == (RestartPolicy(), "")
    settings = {"restart.times": 3, "restart.wait_s": None}
    made = plan_of("demo-cpu", settings=settings)
    assert made.restart == RestartPolicy(times=3)
    assert made.argv == usual.argv
    assert format_restart(made.restart) == snapshot


@pytest.mark.parametrize("settings", [{"restart.times": -1}, {"restart.often": 1}, {"restart.times": "x"}])
def test_invalid_restart_setting_is_reported(settings):
    with pytest.raises(UsageError, match="--set restart: ") as caught:
        resolve("demo-cpu", settings=settings)
    assert caught.value.hint.startswith("there is times, within_s, wait_s")
