"""Clients that disconnect in every phase of a request: its work ends, and its pages are free."""

import random
import socket
import struct
import time
from contextlib import suppress

import pytest
from attack import bodies
from attack.victim import CHAT, Victim

LONG = [{"role": "user", "content": "what is attention? " * 250}]
TEXT = [{"role": "user", "content": "a " * 500_000}]

REQUESTS = {
    "decode": (CHAT, bodies.chat(max_tokens=1900, ignore_eos=True)),
    "decode, stream": (CHAT, bodies.chat(max_tokens=1900, ignore_eos=True, stream=True)),
    "decode, 16 choices": (CHAT, bodies.chat(max_tokens=1900, ignore_eos=True, n=16, stream=True)),
    "prefill": (CHAT, bodies.chat(messages=LONG)),
    "prefill, stream": (CHAT, bodies.chat(messages=LONG, stream=True)),
    "queue": ("/v1/completions", bodies.many_choices()),
    "queue, stream": ("/v1/completions", bodies.many_choices(stream=True)),
    "tokenizer": (CHAT, bodies.chat(messages=TEXT)),
    "grammar": (CHAT, bodies.with_schema(bodies.properties(300), n=16)),
    "responses": (
        "/v1/responses",
        bodies.as_json(input="what is attention?", max_output_tokens=1900, stream=True),
    ),
    "embeddings": ("/v1/embeddings", bodies.embeddings()),
}

DELAYS = (0.0, 0.002, 0.01, 0.03, 0.1, 0.3)


def leave(victim: Victim, request: bytes, delay: float, *, reset: bool) -> None:
    """Send a request, and disconnect after a delay: with a reset, or with a plain close."""
    with victim.connect() as connection, suppress(OSError):
        connection.sendall(request)
        time.sleep(delay)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("name", REQUESTS)
def test_a_disconnect_ends_the_work(name: str, attacked: Victim, full: bool) -> None:
    path, body = REQUESTS[name]
    request = attacked.raw(path, body)
    rounds = 20 if full else 1
    for _ in range(rounds):
        for delay in DELAYS:
            leave(attacked, request, delay, reset=delay in DELAYS[::2])
    attacked.wait_until_idle()
    attacked.check()


def test_a_disconnect_in_the_middle_of_the_request(attacked: Victim, full: bool) -> None:
    draw = random.Random(0)
    for path, body in REQUESTS.values():
        request = attacked.raw(path, body)
        for _ in range(40 if full else 4):
            part = request[: draw.randrange(len(request))]
            leave(attacked, part, draw.choice(DELAYS[:3]), reset=draw.random() < 0.5)
    attacked.wait_until_idle()
    attacked.check()
