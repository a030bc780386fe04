"""Amaranth's own simulator: exact, slow (thousands of cycles a second), and in need of nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from enginebench.features.fpga.waves import Wave

# Only ratios of periods matter to the simulator; one clock has one.
CLOCK_PERIOD_S = 1e-6


def simulate_pins(design: Any, rx: Wave) -> Wave:
    """The `tx` pin of a design while its `rx` pin follows `rx`: cycle i of one is cycle i of the other.

    Args:
        design: an Amaranth component with ports `rx` and `tx`, elaborated once.
    """
    from amaranth.sim import Simulator

    tx = np.empty(len(rx), dtype=np.uint8)

    async def drive(ctx: Any) -> None:
        for i, level in enumerate(rx.tolist()):
            ctx.set(design.rx, level)
            tx[i] = ctx.get(design.tx)
            await ctx.tick()

    simulator = Simulator(design)
    simulator.add_clock(CLOCK_PERIOD_S)
    simulator.add_testbench(drive)
    simulator.run()
    return tx


class ReplayedDevice:
    """A device whose state goes on from call to call: each call simulates all that came before it again.

    Args:
        design: an Amaranth component with ports `rx` and `tx`.
    """

    def __init__(self, design: Any) -> None:
        self._design = design
        self._past = np.zeros(0, dtype=np.uint8)

    def run(self, rx: Wave) -> tuple[Wave, None]:
        """(tx pin, nothing about computing), one sample a cycle."""
        line = np.concatenate([self._past, rx])
        tx = simulate_pins(self._design, line)[len(self._past) :]
        self._past = line
        return tx, None
