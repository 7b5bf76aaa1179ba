"""A server of one process with the test that writes bytes of its own, and leaves no connection behind."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Yield the address of a server that gives every connection to `answer`, which is cancelled in the end.

    Args:
        answer: reads requests and writes bytes.
        tls: encrypts the connections, if given.
    """
    answering: list[asyncio.Task[None]] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        answering.append(task)
        try:
            await answer(reader, writer)
            writer.close()
            await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client is gone
        finally:
            writer.transport.abort()

    async with await asyncio.start_server(take, "127.0.0.1", 0, ssl=tls) as server:
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            for task in answering:
                task.cancel()
            await asyncio.gather(*answering, return_exceptions=True)
