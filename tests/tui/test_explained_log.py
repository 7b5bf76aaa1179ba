"""The palette's `Explain a log`: a file of any vLLM, explained in the panel as on the command line."""

import pytest

from dflash_tui.tui.palette import LogDialog, PanelCommands
from tests.support import recordings
from tests.tui.panel import app, shown_as, shows, wait_for

SIZES = [(80, 24), (120, 36)]


@pytest.mark.parametrize("size", SIZES)
async def test_a_log_is_explained(size, tmp_path):
    """Cause, what to do and the line that decides are in sight; what is no log is said so."""
    file = tmp_path / "server.log"
    file.write_bytes(recordings.raw("cpu-vllm-0.32.0/fail_max_model_len_kv"))
    panel = app()
    async with panel.run_test(size=size) as pilot:
        commands = {command.name: command for command in PanelCommands(panel.screen)._screens()}
        commands["Explain a log"].run()
        await wait_for(pilot, lambda: isinstance(panel.screen, LogDialog))
        await pilot.press(*"/nope", "enter")
        await shows(pilot, "/nope cannot be read")
        dialog = shown_as(panel, LogDialog)
        dialog.field.value = str(file)
        await pilot.press("enter")
        await shows(pilot, "0.03 GiB of KV cache", "--max-model-len to 8064", "at least one", "esc close")
        assert dialog.explanation is not None
        assert dialog.explanation.kind == "kv_cache"
        await pilot.press("escape")
        await wait_for(pilot, lambda: panel.screen is not dialog)
