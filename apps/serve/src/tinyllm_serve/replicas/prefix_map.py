"""Prefix-aware routing: hashes of a request's prefixes, and the replicas that have them cached."""

import json
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from tinyllm_serve.http.body import MAX_VALUES
from tinyllm_serve.http.json_structure import JsonBounds
from tinyllm_serve.protocol.anthropic import BILLING_HEADER

HASH_BYTES = 16
MAX_HASHES = 1024
"""The most hashes of a request. Text after them does not change the choice of a replica."""

BOUNDS = JsonBounds(MAX_VALUES)
"""The largest body that is parsed, with Python's lock held. 10 MB of `{}` take 0.4 s and 300 MB."""

CAPACITY = 1 << 16

# Fields of the prompt, in the order in which chat templates write them.
_FIELDS = ("tools", "instructions", "system", "messages", "input", "prompt")


def prefix_hashes(body: bytes | bytearray, stride: int) -> tuple[bytes, ...]:
    """Hash a request's first `stride` characters, its first 2 * `stride`, and so on.

    The characters are the JSON of the fields that become the prompt. They stand for the tokens,
    which only a replica knows: conversations with a common prefix of text have common pages. Like
    the hash of a page, a hash covers its own piece and the hash before it.

    The first hash is that of `prompt_cache_key`, if there is one: requests without a known prefix
    go to the replica of their key. A body that is no JSON object, or exceeds `BOUNDS`, has no
    hashes.
    """
    try:
        BOUNDS.check(body)
        request = json.loads(body)
        if not isinstance(request, dict):
            return ()
        parts = [_stable(request[name]) for name in _FIELDS if request.get(name) is not None]
        text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return ()  # the replica answers with the error
    hashes: list[bytes] = []
    before = b""
    key = request.get("prompt_cache_key")
    if isinstance(key, str):
        key_bytes = key.encode(errors="surrogatepass")
        hashes.append(
            blake2b(key_bytes, digest_size=HASH_BYTES, person=b"prompt_cache_key").digest()
        )
    for start in range(0, min(len(text), MAX_HASHES * stride) - stride + 1, stride):
        piece = text[start : start + stride].encode(errors="surrogatepass")
        before = blake2b(before + piece, digest_size=HASH_BYTES).digest()
        hashes.append(before)
    return tuple(hashes)


def _stable(value: object) -> object:
    """Return a field without Claude Code's billing header, which differs in each request."""
    if not isinstance(value, list):
        return value
    return [
        item
        for item in value
        if not (isinstance(item, dict) and str(item.get("text")).startswith(BILLING_HEADER))
    ]


class PrefixMap:
    """A map from prefixes to replicas, so that requests with a common prefix share a cache.

    A request goes to the replica of its longest known prefix, unless that replica has `slack`
    requests more than the least loaded one: then computing the prompt again takes less time than
    waiting. Without a known prefix the request goes to the least loaded replica; equally loaded
    replicas take turns.
    """

    def __init__(self, slack: int, capacity: int = CAPACITY) -> None:
        """Start empty, to remember the `capacity` most recently used prefixes."""
        self._capacity = capacity
        self._slack = slack
        self._replica_of: OrderedDict[bytes, str] = OrderedDict()  # least recently used first
        self._last_choice: Counter[str] = Counter()
        self._choices = 0

    def rank(self, prefixes: Sequence[bytes], load: Mapping[str, int]) -> list[str]:
        """Return all replicas, the best one for a request first.

        `prefixes` are sorted, the shortest first. `load` has the requests in progress by replica.
        """
        ranked = sorted(load, key=lambda replica: (load[replica], self._last_choice[replica]))
        for prefix in reversed(prefixes):
            home = self._replica_of.get(prefix)
            if home is not None and home in load:
                if load[home] - load[ranked[0]] < self._slack:
                    ranked.remove(home)
                    ranked.insert(0, home)
                break
        if ranked:
            # Recorded here: the next request may come before this request counts in the load.
            self._choices += 1
            self._last_choice[ranked[0]] = self._choices
        return ranked

    def record(self, prefixes: Sequence[bytes], replica: str) -> None:
        """Record that a request went to a replica, which now has the request's prefixes cached."""
        # The shortest prefix comes last: most requests share it, so it is forgotten last.
        for prefix in reversed(prefixes):
            self._replica_of[prefix] = replica
            self._replica_of.move_to_end(prefix)
        while len(self._replica_of) > self._capacity:
            self._replica_of.popitem(last=False)

    def forget(self, replica: str) -> None:
        """Forget a lost replica, to make room for the prefixes of other replicas."""
        del self._last_choice[replica]
        for prefix in [prefix for prefix, home in self._replica_of.items() if home == replica]:
            del self._replica_of[prefix]
