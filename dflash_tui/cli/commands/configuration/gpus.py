"""`gpus`: the GPUs of this machine and the processes on them."""

from __future__ import annotations

import argparse

from dflash_tui.cli.console import print_data, print_json, print_status, print_table
from dflash_tui.common.formatting import (
    GIB,
    UNKNOWN,
    format_gib,
    format_number,
    format_percent,
    format_usage,
)
from dflash_tui.machine import nvml
from dflash_tui.machine.gpus import Gpu

_HEADER = ("GPU", "NAME", "CLASS", "MEMORY", "BUSY", "HEAT", "POWER", "CLOCK", "THROTTLE")


def gpus(args: argparse.Namespace) -> int:
    """Print the GPUs, or the sentence that says why there are none."""
    probe = nvml.probe_gpus()
    if args.json:
        print_json(probe)
        return 0
    if not probe.gpus:
        print_data(probe.why_none)
        print_status("the recipe demo-cpu runs on the CPU")
        return 0
    print_data(f"driver {probe.driver or UNKNOWN}, CUDA {probe.cuda or UNKNOWN}")
    rows = [_gpu_row(card) for card in probe.gpus]
    print_table(_HEADER, rows, drop=("CLOCK", "NAME", "HEAT"))
    for card in probe.gpus:
        if card.trouble:
            print_data(f"! {card.index}: {card.trouble}")
    processes = [
        (str(card.index), str(process.pid), process.name or UNKNOWN, format_gib(process.memory))
        for card in probe.gpus
        for process in card.processes or ()
    ]
    if processes:
        print_data("")
        print_table(("GPU", "PID", "PROCESS", "MEMORY"), processes, right=(1, 3))
    return 0


def _gpu_row(card: Gpu) -> tuple[str, ...]:
    return (
        str(card.index),
        card.name or UNKNOWN,
        card.hardware.value,
        f"{format_usage(card.memory_used, card.memory_total, 'GiB', GIB)}{' unified' if card.unified else ''}",
        format_percent(card.utilisation),
        format_number(card.temperature_c, 0, "°C"),
        format_usage(card.power_w, card.power_limit_w, "W"),
        format_usage(card.sm_clock_mhz, card.sm_clock_max_mhz, "MHz"),
        UNKNOWN if card.throttle is None else ", ".join(card.throttle) or "no",
    )
