"""This computer: its GPUs as the driver reports them, processes, memory, disks."""
