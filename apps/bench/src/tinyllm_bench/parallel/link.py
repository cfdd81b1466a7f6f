"""What connects two ranks."""

from dataclasses import dataclass

from tinyllm_bench.errors import UsageError


@dataclass(frozen=True)
class Link:
    """A cable, and the programs at both of its ends.

    Attributes:
        name: what it is called.
        bandwidth: bytes a second, in each direction.
        latency: seconds from one rank's `send` to the other's having received, of a message that
            has next to no bytes.
        mesh: whether a sum of few numbers is one exchange of all with all, as JACCL does it up to
            32 KiB, and not a ring.
    """

    name: str
    bandwidth: float
    latency: float
    mesh: bool = False

    def __post_init__(self) -> None:
        """Refuse what nothing could be sent over."""
        if not self.bandwidth > 0:
            raise UsageError(f"--bandwidth: expected a number above 0, got {self.bandwidth}")
        if not 0 <= self.latency < float("inf"):
            raise UsageError(f"--latency: expected 0 or more, got {self.latency}")

    def seconds(self, hops: int, path_bytes: int) -> float:
        """Of so many messages that wait for each other, and have so many bytes together."""
        return hops * self.latency + path_bytes / self.bandwidth


# docs/parallel.md says where these come from. Nominal bandwidths, and latencies that include the
# system and MLX: cables alone take nanoseconds.
LINKS = {
    link.name: link
    for link in (
        Link("loopback", 4e9, 50e-6),
        Link("1gbe", 125e6, 100e-6),
        Link("10gbe", 1.25e9, 70e-6),
        Link("thunderbolt4", 2.5e9, 300e-6),
        Link("thunderbolt5", 5e9, 300e-6),
        Link("thunderbolt5-rdma", 7e9, 10e-6, mesh=True),
        Link("nvlink", 450e9, 3e-6),
    )
}


def named_link(name: str) -> Link:
    """One of `LINKS`.

    Raises:
        UsageError: if there is none of that name.
    """
    if name not in LINKS:
        raise UsageError(f"--link: expected one of {', '.join(LINKS)}, got {name}")
    return LINKS[name]
