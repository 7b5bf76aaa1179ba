"""The processes beside a rank: `python -m dflash_tui.peers keep RUN` on rank 0's host, `guard RUN` on the others."""

from __future__ import annotations

import asyncio
import signal
import sys

from dflash_tui.common.errors import DflashError
from dflash_tui.peers import keeper, lease
from dflash_tui.runs import registry


def main(role: str, name: str) -> int:
    """Do the work of a role until the run has ended; what cannot be done is said in the log of the process."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = registry.find_run(name)
        if role == "guard":
            asyncio.run(lease.guard_lease(run))
        else:
            asyncio.run(_keep(name))
    except (DflashError, OSError) as error:
        print(f"dflash-tui: error: {error}", flush=True)  # noqa: T201 - the log of this process
        return error.exit_code if isinstance(error, DflashError) else 1
    return 0


async def _keep(name: str) -> None:
    await keeper.Keeper(registry.find_run(name)).keep()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
