"""This computer: its GPUs as the driver tells of them, processes, memory, disks."""
