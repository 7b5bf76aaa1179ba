"""What an estimate says that it rests on."""

import pytest
from msgspec.structs import replace

from dflash_tui.experiments import builder
from tests.support import experiment_factories as factories


@pytest.mark.parametrize(("count", "source"), [(1, "by 1 earlier boot of"), (2, "by 2 earlier boots of")])
def test_earlier_boots_are_counted(monkeypatch, count, source):
    design = replace(factories.a_design(), order=(0,))
    boots = [replace(factories.a_boot(number, 0), took=100.0) for number in range(count)]
    monkeypatch.setattr(builder, "_find_earlier_boots", lambda _: [boots, []])
    assert builder.estimate_boots(design).source.startswith(source)
