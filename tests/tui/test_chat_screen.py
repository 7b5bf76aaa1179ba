"""Talking with a server in the panel, with the stand-in for its process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.pilot import Pilot
from textual.widgets import Input, Static

from dflash_tui.benchmark.chat import Conversation, Part, PieceSink, ToolCall, Turn
from dflash_tui.events import RequestDone
from dflash_tui.presentation.client_text import list_cautions
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.screens.chat import ChatScreen
from tests.support.fake_runs import wait_for_answer
from tests.tui.conftest import a_run
from tests.tui.panel import NO_GPU, app, shown_as, shows, text, wait_for

HOSTILE = "[/] [red]evil[/red]\x1b[2J [@click=app.quit]x[/] "


ANSWER = "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n\n[bold]Done.[/bold]"


def panel_on(run: Run) -> DflashApp:
    return DflashApp(run=run, probe=lambda: NO_GPU, load=dict)


async def talking(pilot: Pilot[str]) -> ChatScreen:
    """Wait until the screen is there."""
    await wait_for(pilot, lambda: isinstance(pilot.app.screen, ChatScreen))
    return shown_as(pilot.app, ChatScreen)


@asynccontextmanager
async def talk_with(run: Run, size: tuple[int, int]) -> AsyncIterator[tuple[Pilot[str], DflashApp, ChatScreen]]:
    """Open the panel on a server that answers, and the chat on it."""
    wait_for_answer(run.url)
    panel = panel_on(run)
    async with panel.run_test(size=size) as pilot:
        await wait_for(pilot, lambda: panel.current_mode == "live")
        await pilot.press("4")
        yield pilot, panel, await talking(pilot)


def messages_of(screen: ChatScreen) -> list[dict[str, str]]:
    assert screen.conversation
    return screen.conversation.messages


async def say(pilot, line: str) -> None:
    """Type a line, key by key where that matters, and send it."""
    screen = shown_as(pilot.app, ChatScreen)
    screen.query_one("#say", Input).value = line
    await pilot.press("enter")


async def test_streaming_answer_shows_its_measurements(launch):
    """Thoughts are apart, markup and escapes of a server are text; what was said stays when one comes back."""
    run = launch("telling", "thinks=Let |me |see", f"adds={HOSTILE}", "pace=0.3")
    async with talk_with(run, (120, 36)) as (pilot, panel, screen):
        await shows(pilot, f"{run.url}/v1")
        await pilot.press("h", "i", "4", "enter")
        await shows(
            pilot, "› hi4", "thinking: Let me see", "[/] [red]evil[/red][2J [@click=app.quit]x[/]", "AL 3.55", "tok/s"
        )
        assert messages_of(screen)[1]["content"].startswith("Hello there")
        await say(pilot, "/temperature 0.5")
        await shows(pilot, "temperature 0.5")
        await pilot.press("escape")
        await wait_for(pilot, lambda: panel.current_mode == "live")
        await pilot.press("4")
        await shows(pilot, "› hi4")
        await pilot.press("ctrl+l")
        await wait_for(pilot, lambda: "hi4" not in text(panel))
        assert messages_of(screen) == []


async def test_ctrl_c_and_escape_stop_only_answer(launch):
    """What came stays; the next line is sent."""
    run = launch("stays")
    async with talk_with(run, (80, 24)) as (pilot, panel, screen):
        for number, key in enumerate(("ctrl+c", "escape"), 1):
            await say(pilot, "hi")
            await wait_for(pilot, lambda: text(panel).count("there, this") == number)  # noqa: B023 - awaited here
            await say(pilot, "too early")
            await pilot.press(key)
            await wait_for(pilot, lambda: not screen.answering)
            await wait_for(pilot, lambda: text(panel).count("· stopped") == number)  # noqa: B023 - awaited here
            assert panel.screen is screen
        assert [each["role"] for each in messages_of(screen)] == ["user", "assistant"] * 2


async def test_chat_shows_toy_weights_caution_first(launch):
    """Toy weights answer gibberish; it is said again once the conversation is cleared, and once however often asked."""
    run = launch()
    async with talk_with(run, (80, 24)) as (pilot, panel, screen):
        (caution,) = list_cautions(run)
        first = caution.partition(" about ")[0]  # of two lines here
        await shows(pilot, first)
        assert str(screen.query("#talk > Static").first(Static).content) == caution
        await say(pilot, "hi")
        await wait_for(pilot, lambda: "there, this" in text(panel))
        for line in ("/help", "/clear"):
            await say(pilot, line)
            await wait_for(pilot, lambda: not screen.answering)
        await wait_for(pilot, lambda: "there, this" not in text(panel) and text(panel).count(first) == 1)


async def test_failure_is_reported(launch):
    run = launch("refuse")
    async with talk_with(run, (80, 24)) as (pilot, _, _):
        await say(pilot, "hi")
        await shows(pilot, "✗ HTTP 400", "no thanks")


async def test_chat_needs_running_server():
    panel = DflashApp(probe=lambda: NO_GPU, load=dict)
    async with panel.run_test() as pilot:
        await pilot.press("4")
        await shows(pilot, "no server is running")
        assert panel.current_mode == "launch"


async def answered(talk: Conversation, text: str, show: PieceSink | None) -> Turn:
    """Stand in for a server that always answers the same."""
    assert show
    show(Part.THINKING, f"The user wants {text.lower()}. A short function with one recursion is enough.")
    show(Part.ANSWER, ANSWER)
    done = RequestDone(1.0, "Chat", tokens=96, ttft=0.21, total=1.31, decode_tok_s=86.4, steps=24, accepted=71)
    return Turn(ANSWER, "", (ToolCall("run_python", '{"code": "fib(10)"}'),), done)


def test_the_screen(text_compare, monkeypatch):
    """Markup of a server is text."""
    monkeypatch.setattr(Conversation, "ask", answered)
    monkeypatch.setattr(server_process, "is_alive", lambda _: True)
    panel = app()

    async def act(pilot):
        panel.run_screen.view.begin(a_run())
        await pilot.press("4")
        await wait_for(pilot, lambda: isinstance(panel.screen, ChatScreen))
        await say(pilot, "Fibonacci numbers in Python")
        await shows(pilot, "run_python")
        assert "     return n if" in text(panel)
        panel.screen.set_focus(None)  # a cursor blinks
        await pilot.pause()

    assert text_compare(panel, terminal_size=(80, 24), run_before=act)


async def test_answer_draws_only_last_thousand_lines(launch):
    """Each takes a row of the screen to lay out, which a panel that answers keys has no time for."""
    run = launch("adds=" + "\n" * 15_000 + "end")
    async with talk_with(run, (80, 24)) as (pilot, _, screen):
        await say(pilot, "hi")
        await shows(pilot, "end", "tokens in")
        assert screen.query_one("#talk").virtual_size.height < 1100
