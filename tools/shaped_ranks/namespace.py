"""Network namespaces, each with the addresses of a separate machine."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from wire import Wire, open_tun

PORT = 5000


@dataclass(frozen=True)
class Namespace:
    """The network namespace of one rank.

    Attributes:
        name: name of the namespace.
        address: address of its only network device.
    """

    name: str
    address: str

    def command(self, *command: str) -> list[str]:
        """Return the command that runs a program in this namespace."""
        return ["ip", "netns", "exec", self.name, *command]


@contextmanager
def connected(count: int, bandwidth: float, latency: float) -> Iterator[list[Namespace]]:
    """Connect `count` namespaces with a `Wire` while the context is open. Needs root."""
    with ExitStack() as stack:
        places, devices = [], {}
        for rank in range(count):
            place = Namespace(f"ranks{os.getpid()}-{rank}", f"10.77.0.{rank + 1}")
            device = f"wire{os.getpid()}-{rank}"[-15:]
            devices[rank + 1] = open_tun(device)
            stack.callback(os.close, devices[rank + 1])
            _ip("netns", "add", place.name)
            stack.callback(_ip, "netns", "del", place.name)
            _ip("link", "set", device, "netns", place.name)
            _ip("-n", place.name, "link", "set", "lo", "up")
            _ip("-n", place.name, "addr", "add", f"{place.address}/24", "dev", device)
            _ip("-n", place.name, "link", "set", device, "up")
            places.append(place)
        with Wire(devices, bandwidth, latency):
            yield places


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
