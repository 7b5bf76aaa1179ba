"""This computer: its GPUs as the driver tells of them, processes, memory, disks.

Imports `common` only. Only `nvml` imports pynvml, which costs 80 ms.
"""
