"""What a recorder writes of a server at work, second by second, for hours and days of it."""

from dflash_tui.events import AnyEvent, Counters, GpuLoad, GpusSampled, MemorySampled, RequestDone, Sampled
from tests.tui.conftest import latencies

HOUR = 3600


def load(start: float, second: int, *, n: int = 15) -> list[AnyEvent]:
    """Return what a recorder writes of one second of work on a GPU, each figure a little other than before."""
    steps = second * 37.0
    positions = tuple(steps * 0.8 ** (place + 1) for place in range(n))
    counters = Counters(
        generated=steps * 4.1, prompt=second * 90.0, steps=steps, proposed=steps * n, accepted=sum(positions),
        per_position=positions, running=1, kv_usage=0.2 + second % 50 / 500, prefix_queries=second * 90.0,
        prefix_hits=second * 30.0, finished=second // 8, finished_tokens=second // 8 * 1200.0,
        decode_seconds=second // 8 * 7.5,
    )  # fmt: skip
    gpu = GpuLoad(
        0, 200.0 + second % 90, 300.0, 2000 + second % 300, 2600, 60 + second % 9, 0.9, 70 << 30, 80 << 30, ()
    )
    found: list[AnyEvent] = [Sampled(start + second, counters), GpusSampled(start + second, (gpu,))]
    if second % 10 == 0:
        found.append(MemorySampled(start + second, (60 << 30) + second, 80 << 30, "GPU"))
    if second % 8 == 0:
        found.append(latencies(start + second, second // 8))
        found.append(RequestDone(start + second, "Code", 1200, 30, 0.2, 7.9, 150.0 + second % 40, "length"))
    return found
