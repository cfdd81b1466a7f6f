"""Several streams as one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merge(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Give what each source gives, as it comes, with the source's place in the list.

    The first error of a source is raised, and all sources are closed in any case. One alone is
    passed on as it comes: a task between would be woken for every item.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as source:
            async for only in source:
                yield 0, only
        return
    ready: asyncio.Queue[tuple[int, T] | asyncio.Task[None]] = asyncio.Queue()

    async def forward(place: int, source: AsyncGenerator[T, None]) -> None:
        async with aclosing(source):
            async for item in source:
                ready.put_nowait((place, item))

    tasks = [asyncio.create_task(forward(*pair)) for pair in enumerate(sources)]
    for task in tasks:
        task.add_done_callback(ready.put_nowait)
    under_way = len(tasks)
    try:
        while under_way:
            item = await ready.get()
            if isinstance(item, asyncio.Task):
                item.result()
                under_way -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
