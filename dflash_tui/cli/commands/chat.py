"""Talk with a server: `chat`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys

from dflash_tui.benchmark.chat import Conversation, Part, Turn
from dflash_tui.cli.console import is_json, print_data, print_json, print_piece, print_status
from dflash_tui.cli.requests import choose_server
from dflash_tui.common.errors import ServerFailed
from dflash_tui.presentation.client_text import (
    Endpoint,
    format_endpoint,
    format_tool_call,
    format_turn,
    list_cautions,
    obey_command,
)


def chat(args: argparse.Namespace) -> int:
    """Read lines and print the server's answers on stdout, everything else on stderr."""
    server = choose_server(args)
    conversation = Conversation(server, system=args.system or "", temperature=args.temperature)
    talk = Talk(conversation)
    for caution in list_cautions(server.run) if server.run else ():
        print_status(caution)
    if talk.on_terminal:
        foreign = Endpoint(f"{server.url}/v1", server.model, args.key_env or "")
        endpoint = Endpoint.from_run(server.run) if server.run else foreign
        print_status(f"{format_endpoint(endpoint)}; /help lists commands")
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - enables line editing
    while (line := talk.read_line()) is not None:
        if line.startswith("/"):
            if (reply := obey_command(conversation, line)) is None:
                break
            print_status(reply)
        elif line.strip():
            talk.ask(line.strip())
    return 0


class Talk:
    """A conversation on standard streams; an error or Ctrl-C ends one answer on a terminal, else the program."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.on_terminal = sys.stdin.isatty()
        self._parts: list[Part] = []

    def read_line(self) -> str | None:
        """Return the next line, or None at the end."""
        if not self.on_terminal:
            line = sys.stdin.readline()
            return line.rstrip() if line else None
        try:
            return input("> ").rstrip()
        except EOFError:
            print_status("")
            return None
        except KeyboardInterrupt:
            print_status("\n/quit or Ctrl-D ends")
            return ""

    def ask(self, text: str) -> None:
        """Send a line and print the answer as it arrives."""
        self._parts.clear()
        try:
            turn = asyncio.run(self._conversation.ask(text, None if is_json() else self._show))
        except KeyboardInterrupt:
            print_piece("\n" if self._parts else "", data=Part.ANSWER in self._parts)
            print_status("· stopped")
            if self.on_terminal:
                return
            raise
        self._end(turn)
        if turn.request.error and not self.on_terminal:
            raise ServerFailed("the server did not answer", evidence=turn.request.error)

    def _show(self, part: Part, text: str) -> None:
        if part not in self._parts[-1:]:
            if self._parts or part is Part.THINKING:
                print_status(f"{chr(10) if self._parts else ''}· {part}")
            self._parts.append(part)
        print_piece(text, data=part is Part.ANSWER)

    def _end(self, turn: Turn) -> None:
        if is_json():
            print_json(turn)
            return
        is_answer = Part.ANSWER in self._parts[-1:]
        if self._parts and not (turn.text if is_answer else turn.thinking).endswith("\n"):
            print_piece("\n", data=is_answer)
        for call in turn.tool_calls:
            print_data(f"tool call: {format_tool_call(call)}")
        if turn.request.error:
            if self.on_terminal:
                print_status(f"✗ {turn.request.error}")
        else:
            print_status(f"· {format_turn(turn)}")
