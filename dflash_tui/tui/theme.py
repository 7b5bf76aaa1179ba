"""The two themes: Okabe-Ito colours, which stay apart for colour-blind eyes; meaning never rests on colour alone."""

from __future__ import annotations

from textual.theme import Theme

# Other themes, from the palette, get these for the variables that Textual does not know.
SERIES = {"series-a": "#56B4E9", "series-b": "#E69F00", "series-c": "#CC79A7", "series-dim": "#3F6E8C"}

DARK = Theme(
    "dflash-dark",
    primary="#56B4E9",
    secondary="#4C7A99",
    accent="#E69F00",
    success="#2CC59B",
    warning="#F0E442",
    error="#E8743B",
    background="#101418",
    surface="#161B21",
    panel="#1E252D",
    foreground="#D5DAE0",
    variables={
        **SERIES,
        "border": "#3A4550",
        "border-blurred": "#33404B",
        "footer-background": "#161B21",
        "footer-key-foreground": "#56B4E9",
        "block-cursor-background": "#56B4E9",
        "block-cursor-foreground": "#101418",
        "block-cursor-text-style": "bold",
        "block-cursor-blurred-background": "#274357",
        "block-cursor-blurred-foreground": "#D5DAE0",
    },
)

LIGHT = Theme(
    "dflash-light",
    primary="#0072B2",
    secondary="#4C7A99",
    accent="#B34700",
    success="#00785A",
    warning="#7A5C00",
    error="#B34700",
    background="#F5F5F2",
    surface="#ECECE8",
    panel="#E2E2DD",
    foreground="#20262C",
    dark=False,
    variables={
        "series-a": "#0072B2",
        "series-b": "#D55E00",
        "series-c": "#A3477F",
        "series-dim": "#5C8AA8",
        "border": "#A9AEB2",
        "border-blurred": "#C2C6C9",
        "footer-background": "#E2E2DD",
        "footer-key-foreground": "#0072B2",
        "block-cursor-background": "#0072B2",
        "block-cursor-foreground": "#FFFFFF",
        "block-cursor-text-style": "bold",
        "block-cursor-blurred-background": "#BCD6E6",
        "block-cursor-blurred-foreground": "#20262C",
    },
)
