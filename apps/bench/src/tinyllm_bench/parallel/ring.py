"""What MLX's ring sends: `mlx/distributed/ring/ring.cpp`, for as many bytes as a token has.

Arrays of more than 256 KiB a rank go over several connections or in several messages at once; no
token comes near that.
"""


def sum_messages(numbers: int, width: int, size: int, rank: int) -> list[int]:
    """Bytes that a rank sends for a sum, message by message; each waits for one from the left.

    The array is cut into as many segments as there are ranks, the last of which may be shorter. A
    segment goes round once, to be added up, and once more, to be known: 2 (size - 1) steps
    (Patarasuk and Yuan 2009).

    Args:
        numbers: of the array.
        width: bytes of one of them.
        size: how many ranks there are.
        rank: which one sends.
    """
    padded = max(numbers, size)
    each = -(-padded // size)
    lengths = [max(0, min(padded, start + each) - start) for start in range(0, each * size, each)]
    return [lengths[(rank + step) % size] * width for step in range(2 * (size - 1))]


def gather_messages(nbytes: int, size: int) -> list[int]:
    """Bytes that a rank sends until all have what each has: its own, then what comes by."""
    return [nbytes] * (size - 1)
