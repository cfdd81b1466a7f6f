"""Program of one rank: join the group as the apps do, load a checkpoint, then drive or work.

Argument i is the checkpoint of rank i. Rank 0 prints the next token of a prompt as JSON.
"""

import json
import os
import sys

import mlx.core as mx
from tinyllm_ops import MLX
from tinyllm_qwen.parallel.member import Member


def main() -> None:
    """Join, load, and drive or work."""
    mx.set_default_device(mx.cpu)
    member = Member.join(lambda _rank, _why: os._exit(3))
    assert member is not None
    with member:
        model, tokenizer = member.load(sys.argv[1:][member.ranks.rank], ops=MLX)
        if not member.is_driver:
            member.work(model)
            return
        tokens = mx.array([tokenizer.encode("what is a kv cache?")])
        token = int(mx.argmax(member.drive(model)(tokens, last=1)))
        sys.stdout.write(json.dumps(token) + "\n")


if __name__ == "__main__":
    main()
