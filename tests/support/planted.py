"""A key that somebody plants into texts, whole or with something invisible in its middle, and the search for it."""

import base64

from dflash_tui.common.control_characters import strip_lines, strip_marks

KEY = "Pl4nted-Pl4nted-k3y/zQ"
_A, _B = KEY[:9], KEY[9:]
FORMS = {
    "plain": KEY,
    "colour": f"{_A}\x1b[31m{_B}",
    "colour with a control in it": f"{_A}\x1b[3\0001\x7fm{_B}",
    "cursor": f"{_A}\x9b2C{_B}",
    "title": f"{_A}\x1b]0;x\x07{_B}",
    "zero width": f"{_A}\u200b{_B}",
    "soft hyphen": f"{_A}\xad{_B}",
    "direction": f"{_A}\u202e\u202c{_B}",
    "tag": f"{_A}\U000e0041{_B}",
    "selector": f"{_A}\ufe0f{_B}",
    "accent": f"{_A}\u0301{_B}",
    "nul": f"{_A}\0{_B}",
    "c1": f"{_A}\x85{_B}",
    "bell": f"{_A}\x07{_B}",
    "delete": f"{_A}\x7f{_B}",
    "upper": KEY.upper(),
    "lower": KEY.lower(),
    "mixed": KEY.swapcase(),
    "base64": base64.b64encode(KEY.encode()).decode(),
    "base64 of more": base64.b64encode(f"me:{KEY}".encode()).decode(),
    "base64 for addresses": base64.urlsafe_b64encode(f"a{KEY}".encode()).decode(),
    "address": KEY.replace("/", "%2F"),
}
ALL = " | ".join(FORMS.values())


def is_in(text: str) -> bool:
    """Whether somebody could read the key in a text, in any form."""
    plain = strip_marks(strip_lines(text)).lower()
    coded = [base64.b64encode(b"\0" * at + KEY.encode()).decode()[(0, 2, 3)[at] : -4].lower() for at in range(3)]
    return any(form in plain for form in (KEY.lower(), KEY.lower().replace("/", "%2f"), *coded))
