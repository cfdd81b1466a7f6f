"""Program of one rank of a ring: it prints the bytes that it sent, as the kernel counts them.

The arguments are a checkpoint, a number of tokens, and lengths of arrays. The first printed line
has the bytes of the all-reduce and of the all-gather of each array. The second line has the bytes
of each decoded token.
"""

import json
import os
import socket
import struct
import sys
from pathlib import Path

import mlx.core as mx
from tinyllm_layers import Batch, RankCommunicator
from tinyllm_ops import MLX
from tinyllm_qwen import load

_TCP_INFO = 11
# Types and offsets of fields of struct tcp_info in linux/tcp.h, since Linux 4.19.
_WAITING = "I", 144  # given to the system, not sent yet
_SENT, _AGAIN = ("Q", 200), ("Q", 208)  # bytes sent again are counted in both


def bytes_sent() -> int:
    """Return the bytes sent by the TCP connections of this process. MLX opened all of them."""
    total = 0
    for path in Path("/proc/self/fd").iterdir():
        if not (path.is_symlink() and str(path.readlink()).startswith("socket:")):
            continue
        with socket.socket(fileno=os.dup(int(path.name))) as connection:
            if connection.family == socket.AF_INET and connection.type == socket.SOCK_STREAM:
                info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256)
                sent, again, waiting = (
                    struct.unpack_from(kind, info, place)[0]
                    for kind, place in (_SENT, _AGAIN, _WAITING)
                )
                total += sent - again + waiting
    return total


def counted(array: mx.array) -> int:
    """Return the bytes sent while all ranks compute an array."""
    before = bytes_sent()
    mx.eval(array)
    return bytes_sent() - before


def main() -> None:
    """Count the bytes of all-reduces, all-gathers and decoded tokens."""
    mx.set_default_device(mx.cpu)
    group = mx.distributed.init(strict=True, backend="ring")
    ranks = RankCommunicator(group)
    folder, count, *lengths = sys.argv[1:]
    arrays = [mx.ones(int(length)) for length in lengths]
    counts = [
        [counted(ranks.all_reduce(array)), counted(ranks.all_gather(array))] for array in arrays
    ]
    sys.stdout.write(json.dumps(counts) + "\n")
    model, _ = load(folder, ops=MLX, dtype=mx.float32, group=group)
    caches = model.make_caches()
    tokens = mx.array([[7]])
    each = [
        counted(model.best_tokens(tokens, Batch.at(at, 1, 1), caches, 1).scores)
        for at in range(int(count))
    ]
    sys.stdout.write(json.dumps(each) + "\n")


if __name__ == "__main__":
    main()
