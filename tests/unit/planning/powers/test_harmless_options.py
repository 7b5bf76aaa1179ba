"""The list of what does no harm, against the parsers of the published releases that it was read from."""

import pytest
import requests

from dflash_tui.planning import releases
from dflash_tui.planning.powers import harmless_options
from dflash_tui.planning.powers.power_words import FLAG_WORDS, KEY_WORDS
from dflash_tui.planning.recipes import recipe_rules
from tests.support.vllm_flags import read_all_flags


@pytest.fixture(scope="module")
def sources() -> dict[str, set[str]]:
    """The flags of each release of the table, from its wheel."""
    try:
        return read_all_flags()
    except requests.RequestException as error:
        pytest.skip(f"the package index cannot be reached: {type(error).__name__}")


@pytest.mark.index
def test_each_harmless_flag_is_one_of_its_release(sources):
    """Else it could be the beginning of another there."""
    assert len(sources) >= 9
    for version, flags in sources.items():
        assert len(flags) > 200
        harmless = harmless_options.list_harmless_flags(version)
        assert len(harmless) > 150
        assert harmless - flags == set(), version


@pytest.mark.index
def test_what_is_known_to_do_harm_is_a_flag_of_some_release(sources):
    every = set[str]().union(*sources.values())
    assert FLAG_WORDS.keys() - every == set()
    assert harmless_options.FLAG_KEYS.keys() | harmless_options.FLAG_VALUES.keys() <= every


def test_nothing_is_harmless_and_harmful():
    limited = harmless_options.FLAG_VALUES.keys()
    for version in releases.load_releases():
        assert harmless_options.list_harmless_flags(version) & FLAG_WORDS.keys() <= limited
    assert not harmless_options.SPECULATION_KEYS & KEY_WORDS.keys()
    assert not harmless_options.VARIABLES & harmless_options.CACHE_FOLDERS


def test_what_we_set_ourselves_is_not_on_the_list():
    """A recipe may not set it, so nobody has to judge it."""
    reserved = {name for name in recipe_rules.RESERVED_FLAGS if name != "config"}
    assert not harmless_options.list_harmless_flags("0.33.0") & reserved


def test_limited_flags_and_keys_are_on_the_list():
    flags = harmless_options.list_harmless_flags("0.33.0")
    assert harmless_options.FLAG_VALUES.keys() | harmless_options.FLAG_KEYS.keys() <= flags
