"""Tests of dflash-tui; `support` has what several of them need."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
