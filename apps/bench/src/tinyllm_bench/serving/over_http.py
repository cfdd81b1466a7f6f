"""What `bench batch` measures of an engine, of the server around it."""

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

from tinyllm_bench.batching import SHORT_PROMPT, Batch, Company, random_prompts
from tinyllm_bench.errors import BenchError
from tinyllm_bench.serving.reply import Reply
from tinyllm_bench.serving.roster import tinyllm
from tinyllm_bench.serving.subject_files import SubjectFiles, write_checkpoint
from tinyllm_bench.subject import Subject


@dataclass(frozen=True)
class OverHttp:
    """A server, asked for what `EngineBatches` asks an engine.

    Connections are plain sockets: an HTTP client would take time from the server, whose cores are
    also its own.

    Attributes:
        url: of the server.
        vocab_size: V of its model.
        context: tokens of a prompt and its answer at most.
    """

    url: str
    vocab_size: int
    context: int

    def batch(self, requests: int, tokens: int, seed: int = 0) -> Batch:
        """As `Batches.batch`: from when all of them decode until the first one has ended.

        Raises:
            BenchError: if a request gets no answer.
        """
        return asyncio.run(self._batch(requests, tokens, seed))

    def company(self, prompt_tokens: int, every: float, seed: int = 0) -> Company:
        """As `Batches.company`.

        Raises:
            BenchError: if a request gets no answer.
        """
        return asyncio.run(self._company(prompt_tokens, every, seed))

    async def _batch(self, requests: int, tokens: int, seed: int) -> Batch:
        prompts = random_prompts(self.vocab_size, requests, SHORT_PROMPT, seed)
        replies = await asyncio.gather(*(self._ask(prompt, tokens) for prompt in prompts))
        began = max(reply.pieces[0] for reply in replies)
        ended = min(reply.pieces[-1] for reply in replies)
        # A piece is a token, but for those that are only a part of a character.
        made = sum(
            (tokens - 1) / (len(reply.pieces) - 1) * sum(began < at <= ended for at in reply.pieces)
            for reply in replies
        )
        gaps = [gap for reply in replies for gap in reply.gaps]
        return Batch(requests, made / (ended - began), tuple(gaps))

    async def _company(self, prompt_tokens: int, every: float, seed: int) -> Company:
        (long,) = random_prompts(self.vocab_size, 1, prompt_tokens, seed)
        shorts = iter(random_prompts(self.vocab_size, 1000, SHORT_PROMPT, seed + 1))
        decoding = Reply(time.perf_counter())
        listener = asyncio.create_task(self._ask(next(shorts), self.context, decoding))
        while not decoding.pieces and not listener.done():
            await asyncio.sleep(0.01)
        prefilling = asyncio.create_task(self._ask(long, 1))
        meanwhile: list[asyncio.Task[Reply]] = []
        while not (await asyncio.wait({prefilling}, timeout=every))[0]:
            meanwhile.append(asyncio.create_task(self._ask(next(shorts), 1)))
        reply = prefilling.result()
        first_tokens = [each.first for each in await asyncio.gather(*meanwhile)]
        listener.cancel()
        with suppress(asyncio.CancelledError):
            await listener
        during = [at for at in decoding.pieces if reply.sent <= at <= reply.pieces[0]]
        gaps = [after - before for before, after in pairwise(during)]
        return Company(prompt_tokens, reply.first, tuple(gaps), tuple(first_tokens))

    async def _ask(self, prompt: Sequence[int], tokens: int, reply: Reply | None = None) -> Reply:
        """Let it go on with a prompt, and note when each piece comes."""
        asked = {
            "prompt": prompt,
            "max_tokens": min(tokens, self.context - len(prompt)),
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
        }
        body = json.dumps(asked).encode()
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
            raise BenchError("the server gave no answer to a request of bench batch")
        return reply


@contextmanager
def served(subject: Subject, ops: str, dtype: str, max_running: int) -> Iterator[OverHttp]:
    """Start `serve` with a model of random weights, set up as `EngineBatches.of` sets up an engine.

    Args:
        subject: the model.
        ops: what computes.
        dtype: of the arithmetic.
        max_running: requests at a time.

    Raises:
        BenchError: if it does not come up.
    """
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_checkpoint(subject, Path(folder) / "model")
        running = ("--max-num-seqs", str(max(max_running, 2)), "--no-enable-prefix-caching")
        options = ("--ops", ops, "--dtype", dtype, *running)
        server = tinyllm(SubjectFiles(subject.name, checkpoint, None), *options)
        with server.running(Path(folder) / "log") as started:
            config = subject.config
            yield OverHttp(started.url, config.vocab_size, config.context_length)
