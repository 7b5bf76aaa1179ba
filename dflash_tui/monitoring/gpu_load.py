"""The load of a server's GPUs: power, clocks, throttling, and the processes of others on them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_tui.events import Foreign, GpuLoad
from dflash_tui.machine.gpus import Gpu, GpuProcess


def read_gpu_loads(cards: Sequence[Gpu], pids: set[int], uuids: Sequence[str] = ()) -> tuple[GpuLoad, ...]:
    """Return the load of the GPUs that hold a process of `pids`; when none does, of those named by `uuids`, or of all.

    The driver may show none of our own processes (in a container with its own pids); whose the others are is then
    unknown, and `foreign` is None.
    """
    ours = [card for card in cards if any(holder.pid in pids for holder in card.processes or ())]
    named = [card for card in cards if card.uuid in uuids]
    return tuple(_gpu_load(card, pids if ours else None) for card in ours or named or cards)


def _gpu_load(card: Gpu, pids: set[int] | None) -> GpuLoad:
    others = None if pids is None else tuple(h for h in card.processes or () if h.pid not in pids)
    return GpuLoad(
        index=card.index,
        power_w=card.power_w,
        power_limit_w=card.power_limit_w,
        clock_mhz=card.sm_clock_mhz,
        clock_max_mhz=card.sm_clock_max_mhz,
        temperature_c=card.temperature_c,
        utilisation=card.utilisation,
        memory_used=card.memory_used,
        memory_total=card.memory_total,
        throttle=card.throttle,
        foreign=None if others is None else tuple(map(_foreign_process, others)),
    )


def _foreign_process(holder: GpuProcess) -> Foreign:
    # A process may have any name.
    return Foreign(holder.pid, "".join(c for c in holder.name if c.isprintable())[:40], holder.memory)


def has_load_changed(before: Sequence[GpuLoad], after: Sequence[GpuLoad]) -> bool:
    """Whether a chart or an alarm would show the difference: 3 % of power or clock, 2 °C, 1 % of the memory."""
    if len(before) != len(after):
        return True
    return any(_has_gpu_changed(old, new) for old, new in zip(before, after, strict=True))


def _has_gpu_changed(old: GpuLoad, new: GpuLoad) -> bool:
    if (old.index, old.throttle) != (new.index, new.throttle):
        return True
    if old.foreign is None or new.foreign is None:
        others_changed = old.foreign is not new.foreign
    else:
        others_changed = {process.pid for process in old.foreign} != {process.pid for process in new.foreign}
    return others_changed or any(
        _differ_by(a, b, step)
        for a, b, step in (
            (old.power_w, new.power_w, (old.power_limit_w or 300) * 0.03),
            (old.clock_mhz, new.clock_mhz, (old.clock_max_mhz or 2000) * 0.03),
            (old.temperature_c, new.temperature_c, 2),
            (old.memory_used, new.memory_used, (old.memory_total or 1 << 36) * 0.01),
            (old.utilisation, new.utilisation, 0.1),
        )
    )


def _differ_by(old: float | None, new: float | None, step: float) -> bool:
    return abs(old - new) >= step if old is not None and new is not None else old is not new
