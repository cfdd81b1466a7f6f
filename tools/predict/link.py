"""Links between two ranks."""

from dataclasses import dataclass

from tinyllm_cli.messages import UsageError


@dataclass(frozen=True)
class Link:
    """A network link, with the software at both of its ends.

    Attributes:
        name: name of the link.
        bandwidth: bytes per second in each direction.
        latency: seconds from `send` on one rank to the end of `recv` on the other, for an almost
            empty message.
        mesh: True if an all-reduce of few numbers is one exchange of all ranks with all ranks, as
            in JACCL up to 32 KiB, instead of a ring.
    """

    name: str
    bandwidth: float
    latency: float
    mesh: bool = False

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not self.bandwidth > 0:
            raise UsageError(f"--bandwidth: expected a number above 0, got {self.bandwidth}")
        if not 0 <= self.latency < float("inf"):
            raise UsageError(f"--latency: expected 0 or more, got {self.latency}")

    def seconds(self, hops: int, path_bytes: int) -> float:
        """Return the time of `hops` consecutive messages with `path_bytes` bytes together."""
        return hops * self.latency + path_bytes / self.bandwidth


# docs/parallel.md has the sources. Bandwidths are nominal. Latencies include the operating system
# and MLX: a cable alone takes nanoseconds.
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
    """Return one of `LINKS`.

    Raises:
        UsageError: if there is none with this name.
    """
    if name not in LINKS:
        raise UsageError(f"--link: expected one of {', '.join(LINKS)}, got {name}")
    return LINKS[name]
