"""Work on texts of clients: in threads, few of which serve long texts."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from pydantic import BaseModel
from tinyllm_qwen import TextTooLongError

from tinyllm_serve.http.errors import ApiError

LONG = 50_000
"""The size of long input, in characters and values. It takes more than 50 ms to encode."""

_long_texts = ThreadPoolExecutor(2, thread_name_prefix="long-text")

P = ParamSpec("P")
T = TypeVar("T")


async def run_on_text(given: object, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `work` in a thread, so that streams continue meanwhile.

    Long input waits for one of two threads, so that it never occupies all threads that other
    requests need. `given` is the input, for its size.
    """
    if not _is_long(given):
        return await asyncio.to_thread(work, *args, **kwargs)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_long_texts, lambda: work(*args, **kwargs))


@contextmanager
def length_errors(field: str) -> Iterator[None]:
    """Convert errors of texts that are too long.

    Raises:
        ApiError: 400, with OpenAI's code, for a text of the field `field`.
    """
    try:
        yield
    except TextTooLongError as error:
        message = f"{field}: {error}"
        raise ApiError(400, message, param=field, code="context_length_exceeded") from error


def _is_long(given: object) -> bool:
    """Return True if texts and values add up to more than `LONG`. No more than that are counted."""
    left, waiting = LONG, [iter((given,))]
    while waiting:
        value = next(waiting[-1], waiting)
        if value is waiting:
            waiting.pop()
            continue
        left -= 1 + (len(value) if isinstance(value, str) else 0)
        if left < 0:
            return True
        children = _children(value)
        if children is not None:
            waiting.append(iter(children))
    return False


def _children(value: object) -> Iterable[object] | None:
    match value:
        case BaseModel():
            return vars(value).values()
        case Mapping():
            return (part for item in value.items() for part in item)
        case list():
            return value
    return None
