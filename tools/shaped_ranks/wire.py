"""A network of cables with a bandwidth and a delay, between network namespaces.

The kernel has `tc netem` for this, where it was built with it. This one needs /dev/net/tun alone: a
rank's packets come out of its TUN device into this process, which keeps each for as long as a cable
would, and hands it to the device of the rank that it is addressed to.
"""

import fcntl
import heapq
import itertools
import os
import select
import struct
import threading
import time
from contextlib import suppress

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_MTU = 1500
_LAST_BYTE_OF_DESTINATION = 19  # of an IPv4 header
_REALTIME = 10


def open_tun(name: str) -> int:
    """Make a TUN device, which is gone when the file is closed."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH14x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


class Wire:
    """A thread that forwards packets. Each rank has a separate cable to every other rank.

    A packet leaves when the ones before it have left, `bytes / bandwidth` later, and arrives after
    the latency, as in `Link`.
    """

    def __init__(self, devices: dict[int, int], bandwidth: float, latency: float) -> None:
        """Connect ranks.

        Args:
            devices: file of each TUN device, by the last byte of its rank's address.
            bandwidth: bytes a second, `inf` for no limit.
            latency: seconds.
        """
        self._devices = devices
        self._bandwidth = bandwidth
        self._latency = latency
        self._wake, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._carry)

    def __enter__(self) -> "Wire":
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End; what is under way is lost."""
        os.close(self._stop)
        self._thread.join()
        os.close(self._wake)

    def _carry(self) -> None:
        # Ahead of the ranks, which keep all cores busy, and with timers that are not rounded.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_REALTIME))
        free = dict.fromkeys(self._devices, 0.0)  # when each cable has sent all that it was given
        owners = {device: address for address, device in self._devices.items()}
        under_way: list[tuple[float, int, int, bytes]] = []
        order = itertools.count()
        while True:
            wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
            ready, _, _ = select.select([self._wake, *owners], [], [], wait)
            if self._wake in ready:
                return
            for device in ready:
                packet, sender = os.read(device, _MTU), owners[device]
                left = max(free[sender], time.monotonic()) + len(packet) / self._bandwidth
                free[sender] = left
                to = packet[_LAST_BYTE_OF_DESTINATION]
                if to in self._devices:  # not what a device says to all when it comes up
                    heapq.heappush(under_way, (left + self._latency, next(order), to, packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(under_way)
                with suppress(OSError):  # the rank has ended
                    os.write(self._devices[to], packet)
