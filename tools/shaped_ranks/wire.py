"""A network of cables with a bandwidth and a delay, between network namespaces.

Not every kernel is built with `tc netem`, which does the same. This module needs only /dev/net/tun.
This process reads the packets of each rank from its TUN device, holds each packet as long as a
cable would, and writes the packet to the TUN device of the addressed rank.
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
    """Make a TUN device and return its file descriptor. Closing the file removes the device."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH14x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


class Wire:
    """A thread that forwards packets. All packets that one rank sends share one cable.

    A packet is sent after the earlier packets of the rank. Sending takes `bytes / bandwidth`, and
    the packet arrives `latency` seconds later, as in `Link`.
    """

    def __init__(self, devices: dict[int, int], bandwidth: float, latency: float) -> None:
        """Connect ranks.

        Args:
            devices: file descriptor of each TUN device, by the last byte of its rank's address.
            bandwidth: bytes per second, `inf` for no limit.
            latency: seconds.
        """
        self._devices = devices
        self._bandwidth = bandwidth
        self._latency = latency
        self._wake, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._carry)

    def __enter__(self) -> "Wire":
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread. Packets that have not arrived are lost."""
        os.close(self._stop)
        self._thread.join()
        os.close(self._wake)

    def _carry(self) -> None:
        # Real-time priority, because the ranks keep all cores busy and timers must not be rounded.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_REALTIME))
        free = dict.fromkeys(self._devices, 0.0)  # when each sender's cable is free
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
                if to in self._devices:  # drops multicasts of a new device
                    heapq.heappush(under_way, (left + self._latency, next(order), to, packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(under_way)
                with suppress(OSError):  # the rank has ended
                    os.write(self._devices[to], packet)
