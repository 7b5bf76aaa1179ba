"""What uv says of an install that failed is told with what to do about it."""

import pytest

from dflash_tui.engines.uv_process import advise_on_install_error


@pytest.mark.parametrize(
    ("evidence", "names"),
    [
        ("client error (Connect) cause: invalid peer certificate: UnknownIssuer", "UV_SYSTEM_CERTS"),
        ("error sending request for url: dns error", "UV_DEFAULT_INDEX"),
        ("No space left on device (os error 28)", "UV_CACHE_DIR"),
        ("Resource temporarily unavailable (os error 11)", "ulimit -u"),
        ("torch==2.9 has no usable wheels", "source_builds"),
        ("it is bad", "`engine`"),
    ],
)
def test_install_advice_follows_cause(tmp_path, evidence, names):
    assert names in advise_on_install_error(evidence, tmp_path / "none")
