"""Server that is measured with the same requests as an engine."""

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from tinyllm_bench.errors import BenchError
from tinyllm_bench.models.model import BenchModel
from tinyllm_bench.serving.client import Reply
from tinyllm_bench.serving.engine import (
    SHORT_PROMPT,
    BatchResult,
    LongPromptResult,
    random_prompts,
)
from tinyllm_bench.serving.model_files import ModelFiles, write_checkpoint
from tinyllm_bench.serving.server import tinyllm


@dataclass(frozen=True)
class HttpTarget:
    """A server that receives the requests that `EngineTarget` gives to an engine.

    Connections are plain sockets: an HTTP client would take time from the server, which runs on
    the same cores. A request without an answer raises `BenchError`.
    """

    url: str  # address of the server
    vocab_size: int  # V of its model
    context: int  # most tokens of a prompt and its answer

    def batch(self, requests: int, tokens: int, seed: int = 0) -> BatchResult:
        """See `EngineTarget`."""
        return asyncio.run(self._batch(requests, tokens, seed))

    def long_prompt(self, prompt_tokens: int, every: float) -> LongPromptResult:
        """See `EngineTarget`."""
        return asyncio.run(self._long_prompt(prompt_tokens, every))

    async def _batch(self, requests: int, tokens: int, seed: int) -> BatchResult:
        prompts = random_prompts(self.vocab_size, requests, SHORT_PROMPT, seed)
        replies = await asyncio.gather(*(self._ask(prompt, tokens) for prompt in prompts))
        start = max(reply.pieces[0] for reply in replies)
        end = min(reply.pieces[-1] for reply in replies)
        # A piece is one token, or several tokens that make one character.
        generated = sum(
            (tokens - 1) / (len(reply.pieces) - 1) * sum(start < at <= end for at in reply.pieces)
            for reply in replies
        )
        gaps = [gap for reply in replies for gap in reply.gaps]
        return BatchResult(requests, generated / (end - start), tuple(gaps))

    async def _long_prompt(self, prompt_tokens: int, every: float) -> LongPromptResult:
        (long,) = random_prompts(self.vocab_size, 1, prompt_tokens, seed=0)
        shorts = iter(random_prompts(self.vocab_size, 1000, SHORT_PROMPT, seed=1))
        decoding = Reply(time.perf_counter())
        listener = asyncio.create_task(self._ask(next(shorts), self.context, decoding))
        while not decoding.pieces and not listener.done():
            await asyncio.sleep(0.01)
        prefilling = asyncio.create_task(self._ask(long, 1))
        arrived: list[asyncio.Task[Reply]] = []
        while not (await asyncio.wait({prefilling}, timeout=every))[0]:
            arrived.append(asyncio.create_task(self._ask(next(shorts), 1)))
        reply = prefilling.result()
        first_tokens = [each.first for each in await asyncio.gather(*arrived)]
        listener.cancel()
        with suppress(asyncio.CancelledError):
            await listener
        during = [at for at in decoding.pieces if reply.sent <= at <= reply.pieces[0]]
        gaps = [after - before for before, after in pairwise(during)]
        return LongPromptResult(prompt_tokens, reply.first, tuple(gaps), tuple(first_tokens))

    async def _ask(self, prompt: Sequence[int], tokens: int, reply: Reply | None = None) -> Reply:
        """Complete a prompt, and record the time of each piece."""
        request = {
            "prompt": prompt,
            "max_tokens": min(tokens, self.context - len(prompt)),
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
        }
        body = json.dumps(request).encode()
        host = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(host.hostname, host.port)
        try:
            reply = reply or Reply(time.perf_counter())
            head = (
                f"POST /v1/completions HTTP/1.1\r\nHost: {host.netloc}\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    reply.pieces.append(time.perf_counter())
        finally:
            writer.close()
        if not reply.pieces:
            raise BenchError("the server gave no answer to a request")
        return reply


@contextmanager
def http_target(model: BenchModel, ops: str, dtype: str, max_num_seqs: int) -> Iterator[HttpTarget]:
    """Start tinyllm's server with the settings of `EngineTarget`.

    Args:
        model: the model.
        ops: name of the OpSet.
        dtype: dtype of activations.
        max_num_seqs: most requests at a time.

    Raises:
        BenchError: if the server does not start.
    """
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_checkpoint(model, Path(folder) / "model")
        running = ("--max-num-seqs", str(max(max_num_seqs, 2)), "--no-enable-prefix-caching")
        options = ("--ops", ops, "--dtype", dtype, *running)
        server = tinyllm(ModelFiles(model.name, checkpoint, None), *options)
        with server.running(Path(folder) / "log") as started:
            config = model.config
            yield HttpTarget(started.url, config.vocab_size, config.context_length)
