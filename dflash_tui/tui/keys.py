"""The keys that every screen has; each screen lists its own most important ones before them."""

from __future__ import annotations

from textual.binding import Binding

COMMON_KEYS = (
    Binding("4", "app.chat", "Chat", tooltip="Talk with the server that is watched, or the newest"),
    Binding("r", "app.runs", "Runs", tooltip="Runs: watch, replay or export one"),
    Binding("question_mark", "app.keys", "Help", key_display="?"),
    Binding("q", "app.leave", "Quit", tooltip="Quit the panel; servers and experiments keep running"),
    Binding("1", "app.show('launch')", "Launch", tooltip="The launch screen"),
    Binding("2", "app.show('live')", "Live", show=False, tooltip="The run being watched"),
    Binding("3", "app.show('ab')", "Last A/B", show=False, tooltip="The A/B viewed last, or the newest"),
)
