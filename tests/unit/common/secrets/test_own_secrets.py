"""The user's own secrets, by value: which they are, in which forms they are known, and what is no secret."""

import base64
import json
import os
from urllib.parse import quote

import msgspec
import pytest

from dflash_tui.common.errors import DflashError
from dflash_tui.common.sanitizer import LINE_LIMIT, clean_line
from dflash_tui.common.secrets import own_secrets
from dflash_tui.common.untrusted_json import decode_untrusted
from dflash_tui.engines import uv_process
from dflash_tui.monitoring import run_reader
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support import planted

KEY = planted.KEY


@pytest.fixture
def key(monkeypatch):
    """The key in the environment, and read."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    own_secrets.read_own_secrets()


def hides(value: str) -> bool:
    own_secrets.read_own_secrets()
    return value not in own_secrets.hide_own_secrets(f"a {value} b")


@pytest.mark.parametrize("form", planted.FORMS.values(), ids=planted.FORMS)
def test_a_key_is_known_in_every_form(key, form):
    """As it stands in a line that is cleaned, in a log, an answer and an error."""
    assert not planted.is_in(clean_line(f"ValueError: {form} b"))
    assert clean_line(f"ValueError: {form} b").endswith(" b")
    [*_, line] = LogReader(1e9, 0.0).feed(f"ValueError: {form} b\n".encode(errors="surrogateescape"))
    assert not planted.is_in(str(line))
    data = msgspec.json.encode([form.encode(errors="replace").decode()])
    assert not planted.is_in(str(decode_untrusted(data, msgspec.json.Decoder(list[str]))))
    error = DflashError(form, evidence=form, hint=form)
    assert not planted.is_in(str(error))


@pytest.mark.parametrize("quote_text", [json.dumps, ascii, lambda text: json.dumps(json.dumps(text))])
@pytest.mark.parametrize("form", planted.FORMS.values(), ids=planted.FORMS)
def test_a_key_with_escapes_in_it_is_known_where_they_are_quoted(key, form, quote_text):
    """As a server's refusal shows them, which is JSON."""
    quoted = quote_text(f"no: {form}")
    assert "k3y" not in clean_line(f"HTTP 400: {quoted} b").lower()
    [*_, line] = LogReader(1e9, 0.0).feed(f"ValueError: {quoted} b\n".encode())
    assert "k3y" not in str(line).lower()


@pytest.mark.parametrize("form", planted.FORMS.values(), ids=planted.FORMS)
def test_a_key_is_known_beside_itself_in_another_form(key, form):
    """A text that has the key as it is may have it with marks on its letters, too."""
    assert not planted.is_in(clean_line(f"{KEY} and {form} b"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DB_PASS", "hunter22"), ("X_API_KEY", "/x8Jk3+abcdefgh"), ("X_API_KEY", "/no/such/folder/abc="),
        ("X_TOKEN", "~abcdefgh"), ("A_SECRET", "correct horse battery staple"), ("ANY_URL", "http://me:pa55word@host/x"),
        ("GITHUB_PAT", "abcd1234"), ("A_KEY", 'quo"te\\d-value'), ("A_KEY", "non-äscii-Ünd-so"),
        ("A_KEY", "tab\there-are-more-than-16"), ("HF_TOKENS", "tok-abcd-1234"), ("DB_PASS_PROD", "hunter22"),
        ("ROUTING_KEY", "abcd-1234"), ("GH_PAT_CI", "abcd-1234"), ("COOKIES", "abcd-1234"),
    ],
)  # fmt: skip
def test_a_value_under_the_name_of_a_secret_is_hidden(name, value, monkeypatch):
    """Whatever it begins with, and however it is spelled."""
    monkeypatch.setenv(name, value)
    own_secrets.read_own_secrets()
    core = "pa55word" if name == "ANY_URL" else value
    for form in (core, core.upper(), msgspec.json.encode(core).decode(), quote(core, safe="")):
        assert "[left out]" in clean_line(f"x='{form}' y"), form


@pytest.mark.parametrize("form", ["p%40ss/W0rd%21", "p%40ss%2FW0rd%21", "p@ss/W0rd!"])
def test_a_password_in_an_address_is_known_as_others_quote_it(form, monkeypatch):
    """Who connects with it may name it without quoting, or with another one."""
    monkeypatch.setenv("HTTPS_PROXY", "http://me:p%40ss%2FW0rd%21@proxy:3128")
    own_secrets.read_own_secrets()
    assert clean_line(f"login {form} failed") == "login [left out] failed"


def test_a_password_that_nobody_quoted_and_a_value_with_a_line_end_are_known(monkeypatch):
    """As they stand in a variable that was read from a file, or typed."""
    monkeypatch.setenv("ANY_URL", "https://u:p@ssw/rd1234567@host/x")
    monkeypatch.setenv("DB_PASS", "hunter22\n")
    own_secrets.read_own_secrets()
    assert clean_line("p@ssw/rd1234567, hunter22 x") == "[left out], [left out] x"


@pytest.mark.parametrize("unseen", "\u17b4\u180b\u180f\ufff0\U000e0080\U000e0fff", ids=ascii)
def test_a_key_is_known_with_characters_in_it_that_nobody_sees(key, unseen):
    """As Unicode has them to be ignored where a font has none."""
    assert clean_line(f"a {KEY[:5]}{unseen}{KEY[5:]} b") == "a [left out] b"


def test_a_value_is_known_as_a_clean_text_shows_it(monkeypatch):
    """Also when it holds itself what cleaning takes out."""
    monkeypatch.setenv("A_KEY", "zero\u200bwidth")
    own_secrets.read_own_secrets()
    assert clean_line("a zero\u200bwidth b, zerowidth") == "a [left out] b, [left out]"


def test_each_line_of_a_private_key_is_a_secret(monkeypatch):
    """A log has it line by line."""
    body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
    monkeypatch.setenv("TLS_KEY", f"-----BEGIN PRIVATE KEY-----\n{body}\n}}\n-----END PRIVATE KEY-----\n")
    assert hides(body)
    assert not hides("}")


@pytest.mark.parametrize("variable", ["", "HF_HOME", "HF_TOKEN_PATH"])
def test_the_token_of_the_hub_is_hidden(variable, monkeypatch, folders, tmp_path):
    """The one in the file that `hf auth login` writes."""
    path = tmp_path / "token" if variable else folders / "cache" / "huggingface" / "token"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a-token-of-a-mirror\n")
    if variable:
        monkeypatch.setenv(variable, str(path if variable == "HF_TOKEN_PATH" else path.parent))
    assert hides("a-token-of-a-mirror")
    assert not hides(str(path))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("A_KEY", "enabled", "enabled"),  # short
        ("A_KEY", "localhost", "http://localhost:8000"),  # stands for none
        ("A_KEY", "20261122", '{"at": 20261122}'),  # a number
        ("A_KEY", "attention", "FlashAttention"),  # a part of a word
        ("SSH_KEY_PATH", "/etc/hostname", "/etc/hostname"),
        ("TLS_KEY", "/etc/hostname", "cannot read /etc/hostname"),  # a file that is there
        ("TLS_KEY", "/etc/no-such-key.pem", "cannot read /etc/no-such-key.pem"),  # or could be
        ("DB_PASSWORD", "somebody", "/home/somebody/models"),  # in every path of ours
        ("MAX_TOKENS", "some-value", "some-value"),
        ("PIP_KEYRING_PROVIDER", "somewhere", "somewhere"),
        ("PATH", "/usr/bin", "/usr/bin/python"),
    ],
)
def test_what_is_no_secret_stays(name, value, text, monkeypatch):
    """A log with holes helps nobody."""
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv(name, value)
    own_secrets.read_own_secrets()
    assert clean_line(text) == text


@pytest.mark.parametrize("text", [KEY, planted.FORMS["colour"], planted.FORMS["accent"], planted.FORMS["selector"]])
def test_no_half_of_a_key_stands_where_a_line_is_cut(key, text):
    """Neither where it is shown, nor where a reader has had enough of it."""
    for limit in (LINE_LIMIT, 1 << 16, 1 << 20):
        for before in range(limit - 40, limit + 1):
            line = "\x1b[m" * ((before - 500) // 3) + "y" * 500 + text + "z" * 50
            shown = clean_line(line)
            assert KEY[:6] not in shown, (limit, before)
            if limit == LINE_LIMIT:
                assert KEY[:6] not in clean_line("y" * before + text + "z" * 3000)


@pytest.mark.parametrize("cut", range(8, 40))
def test_no_quoted_half_of_a_key_stands_where_a_text_is_cut(key, cut):
    """However far it goes, also where the cut is in a quoted character."""
    for quoted in (r"Pl4nted\u002dPl4nted\u002dk3yzQ", "Pl4nted%2DPl4nted%2Dk3yzQ", "Pl4nted&#45;Pl4nted&#45;k3yzQ"):
        assert "l4nt" not in own_secrets.own_secrets().hide_cut(f"a {quoted[:cut]}", end=True)


@pytest.mark.parametrize("cut", range(4, 26))
def test_no_quoted_half_of_a_key_stands_where_the_start_of_a_text_is_cut(monkeypatch, cut):
    """As an address quotes it, once or twice, as JSON and as HTML do."""
    monkeypatch.setenv("VLLM_API_KEY", "Pl4nted-Pl4nted-k3y/zQ")
    secrets = own_secrets.read_own_secrets()
    for quoted in (
        "Pl4nted-Pl4nted-k3y%2FzQ", "Pl4nted-Pl4nted-k3y%252FzQ", r"Pl4nted-Pl4nted-k3y\u002fzQ",
        "Pl4nted-Pl4nted-k3y&#47;zQ", r"Pl4nted%2DPl4nted%2Dk3y\/zQ",
    ):  # fmt: skip
        assert "y" not in secrets.hide_cut(f"{quoted[cut:]} b", start=True)
    assert secrets.hide_cut("100% of it", start=True) == "100% of it"


@pytest.mark.parametrize("value", ["correct hörse battery staple", 'pass"wörd of a database'])
@pytest.mark.parametrize(
    "quote_text",
    [
        ascii, lambda text: json.dumps(json.dumps(text)),
        lambda text: text.encode("ascii", "xmlcharrefreplace").decode(),
        lambda text: quote(text, safe=" "), lambda text: quote(quote(text, safe=" "), safe=" "),
    ],
    ids=["Python", "JSON twice", "HTML", "address", "address twice"],
)  # fmt: skip
def test_no_quoted_half_of_a_value_with_blanks_stands_where_a_text_is_cut(monkeypatch, value, quote_text):
    """All of its words, not only the one that was cut."""
    monkeypatch.setenv("DB_PASS", value)
    secrets = own_secrets.read_own_secrets()
    quoted = quote_text(value)
    for cut in range(6, len(quoted) - 6):
        before = secrets.hide_cut(f"so it is {quoted[:cut]}", end=True)
        assert not any(word in before for word in ("corr", "batt", "pass", "rd of"))
        after = secrets.hide_cut(f"{quoted[cut:]} it was so", start=True)
        assert not any(word in after for word in ("tery", "staple", "of a", "base"))
    assert secrets.hide_cut("of 100% of it", end=True) == "of 100% of it"


@pytest.mark.parametrize(
    "quoted",
    [
        r"\u002fk3y-zQ12345", "%2Fk3y-zQ12345", "%252Fk3y-zQ12345", "&#x2F;k3y-zQ12345", "&amp;#47;k3y-zQ12345",
        r"\x2fk3y-zQ12345", r"\u{2f}k3y-zQ12345", r"\\u002fk3y-zQ12345", "&sol;k3y-zQ12345", r"\nk3y-zQ12345",
    ],
)  # fmt: skip
def test_no_half_of_a_key_stands_where_a_quoted_character_was_cut(quoted, monkeypatch):
    """What is left of the character says no more that it was one."""
    monkeypatch.setenv("VLLM_API_KEY", "Pl4nted-Pl4nted/k3y-zQ12345")
    secrets = own_secrets.read_own_secrets()
    for cut in range(quoted.index("k3y") + 1):
        assert secrets.hide_cut(f"{quoted[cut:]}, he said", start=True).removeprefix("\\") in {", he said", " he said"}
    for text in ("2 of 4", "face it", "x; k3y", "add345"):
        assert secrets.hide_cut(text, start=True) == text


@pytest.mark.parametrize("cut", range(5, 17))
def test_no_half_of_a_value_stands_where_bytes_were_cut_within_a_character(cut, monkeypatch):
    monkeypatch.setenv("DB_PASS", "päss phröse-Tr0ub4dor")
    secrets, whole = own_secrets.read_own_secrets(), "päss phröse-Tr0ub4dor".encode()
    before, after = whole[:cut].decode(errors="replace"), whole[cut:].decode(errors="replace")
    assert "p" not in secrets.hide_cut(f"it is {before}", end=True)
    assert "dor" not in secrets.hide_cut(f"{after} it is", start=True)


def test_no_half_of_a_key_ends_what_is_quoted_of_an_install(key, tmp_path):
    """Of what uv says the beginning is shown."""
    progress = uv_process.InstallProgress("vLLM", (), 1, lambda _event: None)
    said = [f"error: {'x' * 1473}{KEY} and more"]
    evidence = uv_process.build_install_error(progress, ["pip", "install"], said, tmp_path / "lock").evidence
    assert evidence.startswith("error: xxx")
    assert KEY[:4] not in evidence


@pytest.mark.parametrize("piece", [1 << 12, 1 << 16, (1 << 20) - 7])
def test_no_half_of_a_key_begins_a_line_after_the_reader_cut_one(key, piece):
    """The rest of a line that is longer than the reader's buffer belongs to no other line."""
    data = b"y" * ((1 << 20) - 12) + KEY.encode() + b"z" * (3 << 20) + KEY.encode() + b"\nafter it\n"
    reader = LogReader(1e9, 0.0)
    events = [event for at in range(0, len(data), piece) for event in reader.feed(data[at : at + piece])]
    lines = [event.text for event in events if hasattr(event, "text")]
    assert KEY[-6:] not in "".join(lines)
    assert (len(lines), lines[-1]) == (2, "after it")


def test_a_line_of_which_the_middle_is_left_out_is_not_begun_again(key, monkeypatch, tmp_path):
    """Of a line longer than the reader's pieces, in a long log, the rest is left out as well, also when it goes on."""
    monkeypatch.setattr(run_reader, "_LOG_END_BYTES", 1 << 17)
    monkeypatch.setattr(run_reader, "_MAX_SAMPLE_BYTES", 1 << 12)
    path = tmp_path / "server.log"
    line = b"x" * (1 << 20) + KEY.encode() + b"x" * (1 << 15)
    path.write_bytes(b"first\n" + line)
    tail = run_reader.TailReader(lambda: path, 1 << 18)
    data = b"".join(iter(tail.read, b""))
    with path.open("ab") as log:
        log.write(KEY.encode() + b"\nlast\n")
    data += b"".join(iter(tail.read, b""))
    assert data.splitlines()[0] == b"first"
    assert data.splitlines()[-1] == b"last"
    assert KEY[-6:].encode() not in data


def test_a_long_log_is_left_out_by_whole_lines(key, monkeypatch, tmp_path):
    """Of a line that is cut nothing is shown."""
    monkeypatch.setattr(run_reader, "_LOG_END_BYTES", 1 << 17)
    path = tmp_path / "server.log"
    for shift in range(0, len(KEY) + 2, 5):
        line = b"x" * 20 + KEY.encode() + b"x" * 20 + b"\n"
        path.write_bytes(b"y" * shift + b"\n" + line * 8000)
        tail = run_reader.TailReader(lambda: path, 1 << 18)
        reader, texts = LogReader(1e9, 0.0), []
        while data := tail.read():
            texts += [event.text for event in reader.feed(data) if hasattr(event, "text")]
        assert any("left out …" in text for text in texts)
        assert {text for text in texts if "x" in text} == {f"{'x' * 20}[left out]{'x' * 20}"}


@pytest.mark.parametrize(
    "quoted",
    [
        r"p\u0026ss\u003cw0rd/+ \"é'\\end", r"p&ss<w0rd\/+ \"é'\\end", r"p&ss<w0rd/+ \"\u00e9'\\end",
        "p&amp;ss&lt;w0rd/+ &quot;é&#x27;\\end", r"""p&ss<w0rd/+ "é\'\\end""", "p%26ss%3Cw0rd%2F%2B+%22%C3%A9%27%5Cend",
        "p%26ss%3cw0rd/%2b%20%22%c3%a9%27%5cend", "p&amp;ss&lt;w0rd/+ &#34;é&#39;\\end", 'p&amp;ss&lt;w0rd/+ "é\'\\end',
        "p&ss%3Cw0rd/+%20%22%C3%A9'%5Cend", "p%26ss%3Cw0rd%2F%2B%20%22%C3%A9'%5Cend",
        r"p\u0026ss\u003Cw0rd/\u002B \u0022\u00E9\u0027\\end", r"p\u0026ss\u003cw0rd/+ \"é\u0027\\end",
        r"p&ss<w0rd/+ \\\"\\u00e9'\\\\end", r"p\u{26}ss<w0rd/+ \"\u{e9}'\\end",
        "p&amp;ss&#27;[31m&lt;w0rd/+ &quot;é&#x27;\\end",
        r"p&\bss<w\f0rd/+ \"é'\\end", r"p&\33[1mss<w\f0rd/+ \"é'\\end", r"p&\rss<w\n0rd/+ \"é'\\end",
        r"p&\u000ass<w\r\n0rd/+ \"é'\\end", r"p&ss<w\\n0rd/+ \\\"é'\\\\end", "p%26ss%0D%0A%3Cw0rd/+ %22é'%5Cend",
        "p&amp;ss&#10;&lt;w&#x0A;0rd/+ &quot;é'\\end",
    ],
)  # fmt: skip
def test_a_value_is_known_as_programs_quote_it(quoted, monkeypatch):
    """In the JSON of Go, PHP and Python, in HTML, as Python shows it, and in forms and addresses."""
    monkeypatch.setenv("MY_TOKEN", "p&ss<w0rd/+ \"é'\\end")
    assert own_secrets.read_own_secrets().hide(f"said <{quoted}>") == f"said <{own_secrets.LEFT_OUT}>"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("pässwört-17-lang", r"b'p\xc3\xa4ssw\xc3\xb6rt-17-lang'"),
        ("straße-geheim-17x", "STRASSE-GEHEIM-17X"),
        ("first-line-of-it\nsecond-line-of-it", r"first-line-of-it\nsecond-line-of-it"),
    ],
)
def test_what_is_no_ascii_or_has_lines_is_known_as_python_writes_it(value, said, monkeypatch):
    """As bytes, and in capitals."""
    monkeypatch.setenv("MY_PASS", value)
    hidden = own_secrets.read_own_secrets().hide(said)
    assert own_secrets.LEFT_OUT in hidden
    assert not any(part in hidden for part in ("ssw", "GEHEIM", "line"))


def test_base64_is_known_wherever_it_begins(key):
    """In a header of a name and a password, for instance."""
    for before in ("", "a", "me", "me:"):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            coded = encode(f"{before}{KEY}?>".encode()).decode()
            assert "[left out]" in clean_line(f"Basic {coded}")


def test_base64_is_known_in_lines_that_json_quotes(monkeypatch):
    """As `base64.encodebytes` writes it, which a server's refusal may quote."""
    monkeypatch.setenv("VLLM_API_KEY", f"{KEY}-{'0123456789abcdef' * 6}")
    own_secrets.read_own_secrets()
    for value in (os.environ["VLLM_API_KEY"], f"me:{os.environ['VLLM_API_KEY']}"):
        coded = base64.encodebytes(value.encode()).decode()
        hidden = clean_line(json.dumps({"header": coded, "more": json.dumps(coded)}))
        assert "[left out]" in hidden
        assert not any(line[8:40] in hidden for line in coded.split()[:-1])


@pytest.mark.parametrize("line_end", [r"\n", r"\t", r"\u000a", r"\x0d", "%0A", "&#10;", r"\\n", "%250a"])
def test_a_short_value_is_known_after_a_quoted_line_end(line_end, monkeypatch):
    """It stands alone there, and not within a word."""
    monkeypatch.setenv("DB_PASS", "hunter22")
    own_secrets.read_own_secrets()
    assert "hunter22" not in clean_line(f"said it is{line_end}hunter22{line_end}so")
    assert clean_line(f"100%{line_end}xhunter22") == f"100%{line_end}xhunter22"
