"""Links between a host and an accelerator: what a number of bytes costs on the wire, framing included."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.text import parse_finite
from enginebench_fpga.frames import FRAME_BITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

# FTDI's adapters hold short answers back until this timer ends; the driver can set 1 to 255 ms.
# Source: FTDI application note AN232B-04, "Data Throughput, Latency and Handshaking", section 3.2.
USB_SERIAL_LATENCY_MS = 16.0


class Link(Struct, frozen=True, kw_only=True):
    """One link. A transfer of n bytes costs its latency plus the time of its packets on the wire.

    `packet_bytes` is the most payload of one packet, 0 where bytes travel one by one; each packet adds
    `overhead_bytes`, and carries at least `minimum_bytes` of payload or padding.
    """

    name: str
    wire_bytes_per_s: float  # framing included; the unit of `overhead_bytes`
    latency_s: float = 0.0  # paid by each transfer, in either direction
    answer_latency_s: float = 0.0  # paid by the way back only: the timer of a USB-serial adapter
    packet_bytes: int = 0
    overhead_bytes: int = 0
    minimum_bytes: int = 0
    half_duplex: bool = False

    @property
    def payload_bytes_per_s(self) -> float:
        """Payload of full packets, bytes per second."""
        if not self.packet_bytes:
            return self.wire_bytes_per_s
        return self.wire_bytes_per_s * self.packet_bytes / (self.packet_bytes + self.overhead_bytes)

    def transfer_s(self, size_bytes: NDArray[np.int64] | int, answer: bool = False) -> NDArray[np.float64]:
        """Seconds that transfers of so many bytes of payload take; nothing to send takes no time at all."""
        sizes = np.asarray(size_bytes, dtype=np.int64)
        latency = self.latency_s + (self.answer_latency_s if answer else 0.0)
        on_wire = sizes
        if self.packet_bytes:
            full, rest = np.divmod(sizes, self.packet_bytes)
            last = np.where(rest > 0, np.maximum(rest, self.minimum_bytes) + self.overhead_bytes, 0)
            on_wire = full * (self.packet_bytes + self.overhead_bytes) + last
        return np.where(sizes > 0, latency + on_wire / self.wire_bytes_per_s, 0.0)


NAMED = {
    link.name: link
    for link in (
        # 13 packets of 512 bytes in each microframe of 125 us; both ways share the bus. A transfer waits for its
        # microframe. Source: Universal Serial Bus Specification 2.0, table 5-10 and section 5.8.4.
        Link(name="usb2", wire_bytes_per_s=13 * 512 / 125e-6, latency_s=125e-6, half_duplex=True),
        # 5 Gbit/s in 8b/10b symbols; a packet of 1024 bytes has a header of 20 symbols, 8 of framing, 4 of CRC.
        # Source: Universal Serial Bus 3.0 Specification, sections 6.3 and 7.2.1.
        Link(name="usb3", wire_bytes_per_s=500e6, latency_s=125e-6, packet_bytes=1024, overhead_bytes=32),
        # UDP over IPv4: preamble 8, header 14, check sequence 4, gap 12, IP 20, UDP 8 bytes; 46 bytes at least under
        # the header. Source: IEEE 802.3-2018, clauses 3 and 4.2.3.2; RFC 791; RFC 768.
        Link(name="eth100", wire_bytes_per_s=12.5e6, packet_bytes=1472, overhead_bytes=66, minimum_bytes=18),
        Link(name="eth1g", wire_bytes_per_s=125e6, packet_bytes=1472, overhead_bytes=66, minimum_bytes=18),
        # 8 GT/s, 128 of 130 bits, four lanes; a packet of 256 bytes has a token of 4, a header of 16, a CRC of 4 bytes.
        # One microsecond a transfer: R. Neugebauer et al., "Understanding PCIe performance for end host networking",
        # SIGCOMM 2018, figure 6, saw 0.5 to 1.2 us. Framing: PCI Express Base Specification 3.0, section 4.2.2.
        Link(name="pcie3x4", wire_bytes_per_s=4e9 * 128 / 130, latency_s=1e-6, packet_bytes=256, overhead_bytes=24),
    )
}

# Far beyond every link, and within what 64-bit floats multiply without a care.
SMALLEST, LARGEST = 1e-6, 1e18
KNOWN = f"uart:BAUD, {', '.join(NAMED)}, BYTES_PER_S+LATENCY_US, each with +usb[:MS] for a USB-serial adapter"


def parse_link(text: str) -> Link:
    """The link that a LINK text means: `uart:115200`, `eth1g`, `1e6+50`, `uart:3000000+usb:1`.

    `+usb` adds the latency timer of a USB-serial adapter to the way back, 16 ms unless it says otherwise.
    """
    base, usb, timer = re.fullmatch(r"(.*?)(?:\+(usb)(?::(.*))?)?", text, re.DOTALL).groups()  # type: ignore[union-attr]
    link = NAMED.get(base) or _parse_rate(base, text)
    if usb is None:
        return link
    timer_ms = USB_SERIAL_LATENCY_MS if timer is None else _read(timer, text)
    return replace(link, name=text, answer_latency_s=timer_ms / 1e3)


def _parse_rate(base: str, text: str) -> Link:
    if base.startswith("uart:"):
        baud = _read(base.removeprefix("uart:"), text)
        return Link(name=base, wire_bytes_per_s=baud / FRAME_BITS)
    rate, plus, latency = base.rpartition("+")
    if plus and not rate.lower().endswith("e"):  # 1e+6 is a number, not a rate and a latency
        return Link(name=base, wire_bytes_per_s=_read(rate, text), latency_s=_read(latency, text, zero=True) / 1e6)
    return Link(name=base, wire_bytes_per_s=_read(base, text))


def _read(number: str, text: str, zero: bool = False) -> float:
    value = parse_finite(number)
    if value is None or not (SMALLEST <= value <= LARGEST or (zero and value == 0)):
        raise UsageError(f"unknown link {text!r}; expected {KNOWN}, with numbers from {SMALLEST:g} to {LARGEST:g}")
    return value
