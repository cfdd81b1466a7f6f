"""Work on texts of clients: in threads, few of which serve long texts."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from tinyllm_qwen import TextTooLongError

from tinyllm_serve.http.errors import ApiError
from tinyllm_serve.protocol.input_size import is_larger

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
    if not is_larger(given, LONG):
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
