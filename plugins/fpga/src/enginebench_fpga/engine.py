"""`fpga-sim`: an INT8 network on a simulated FPGA board. Its answers are real; its times are modelled and say so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from enginebench import __version__
from enginebench.core.engine_api import Closing
from enginebench.core.errors import BackendUnavailable
from enginebench.core.feeds import check_feeds, random_feeds
from enginebench.core.protocols import Array, Feeds, RunCall
from enginebench.core.records import (
    Artifact,
    ArtifactKind,
    Availability,
    Block,
    EngineSpec,
    Measurement,
    MeasureSpec,
    TensorSpec,
)
from enginebench.core.warnings import make_warning
from enginebench.engines.request import check_request, check_state, read_options
from enginebench_fpga import INSTALL
from enginebench_fpga.entry import FPGA_SIM
from enginebench_fpga.toolchain import find_tool_package

if TYPE_CHECKING:
    from enginebench_fpga.board import SimulatedBoard

NAME, OPTIONS = FPGA_SIM.name, FPGA_SIM.options
KINDS: tuple[ArtifactKind, ...] = ("onnx", "design")
# Enough for a 99th percentile (architecture: at least 368 samples); each is an inference through the simulated UART.
INFERENCES = 400


class FpgaSimBackend:
    name = NAME

    def __init__(self, cache_dir: Path | None) -> None:
        self._cache_dir = cache_dir

    def probe(self) -> Availability:
        """Available; whether its tools are there shows when it is built."""
        return Availability(engine=NAME, available=True, version=__version__, devices=("cpu",))

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        board = self._open(artifact, spec, out_dir)
        board.close()
        return replace(
            artifact,
            kind="design",
            sha256=board.design_sha256,
            parent_sha256=artifact.sha256,
            precision="int8",
            made_by={**artifact.made_by, "enginebench": __version__},
            warnings=(*artifact.warnings, make_warning("modelled", board=board.description)),
        )

    def load(self, artifact: Artifact, spec: EngineSpec) -> FpgaSimEngine:
        return FpgaSimEngine(self._open(artifact, spec, Path(artifact.path).parent))

    def measure(self, artifact: Artifact, spec: EngineSpec, measure: MeasureSpec) -> Measurement:
        """Latencies of seeded random inputs: cycles that the device counted, at its clock, plus its link.

        Scope does not matter here: the copies over the link belong to every answer of this device, and are also told
        apart in `h2d_ns` and `d2h_ns`; `device_ns` is compute alone.
        """
        board = self._open(artifact, spec, Path(artifact.path).parent)
        try:
            feeds = random_feeds(board.inputs, measure.iters or INFERENCES, measure.seed)
            _, cycles = board.infer(feeds[board.inputs[0].name])
        finally:
            board.close()
        terms = [board.model_ns(count) for count in cycles]
        latencies = [sum(term) for term in terms]
        return Measurement(
            clock="modelled",
            latency_ns=latencies,
            blocks=(Block(start=0, stop=len(latencies), duration_ns=sum(latencies)),),
            stop_rule="iterations",
            device_ns=[compute for _, compute, _ in terms],
            h2d_ns=[copy_in for copy_in, _, _ in terms],
            d2h_ns=[copy_back for _, _, copy_back in terms],
            throughput_pipelined_per_s=1e9 / max(board.model_interval_ns(count) for count in cycles),
            warnings=(make_warning("modelled", board=board.description),),
        )

    def _open(self, artifact: Artifact, spec: EngineSpec, folder: Path) -> SimulatedBoard:
        """The board for a request that can be met; compiled designs are kept in the cache, or beside the artifact."""
        check_request(artifact, spec, KINDS, FPGA_SIM.precisions)
        if spec.batch != 1:
            raise BackendUnavailable(
                f"engine {NAME} takes one input per request, not a batch of {spec.batch}; use --batch 1"
            )
        options = read_options(spec, OPTIONS)
        try:
            return make_simulated_board(artifact, options, self._cache_dir or folder / "cache")
        except ImportError as error:
            raise BackendUnavailable(f"engine {NAME}: {error}. To add what it needs: {INSTALL}") from error


create_backend = FpgaSimBackend


def make_simulated_board(artifact: Artifact, options: Mapping[str, str], cache: Path) -> SimulatedBoard:
    find_tool_package("amaranth")
    from enginebench_fpga import board

    return board.make_board(artifact, options, cache)


class FpgaSimEngine(Closing):
    """The device as an engine; `run` simulates it, which says nothing about its speed."""

    def __init__(self, board: SimulatedBoard) -> None:
        self.inputs: tuple[TensorSpec, ...] = board.inputs
        self.outputs: tuple[TensorSpec, ...] = board.outputs
        self._board: SimulatedBoard | None = board
        self._bound: Array | None = None
        self._answer: Array | None = None

    def bind(self, feeds: Feeds) -> None:
        check_state(NAME, closed=self._board is None)
        check_feeds(self.inputs, feeds)
        self._bound = feeds[self.inputs[0].name].copy()

    @property
    def run(self) -> RunCall:
        """The simulation of the bound inputs, one request each."""
        check_state(NAME, closed=self._board is None, bound=self._bound is not None)
        return self._run

    def fetch(self) -> dict[str, Array]:
        check_state(NAME, closed=self._board is None, bound=self._answer is not None)
        assert self._answer is not None
        return {self.outputs[0].name: self._answer.copy()}

    def effective_precision(self) -> dict[str, float]:
        """All products of the design are of bytes: it has no other multipliers but the requantizer's."""
        return {"int8": 1.0}

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
        self._board, self._bound, self._answer = None, None, None

    def _run(self) -> None:
        check_state(NAME, closed=self._board is None, bound=self._bound is not None)
        assert self._board is not None and self._bound is not None
        self._answer, _ = self._board.infer(self._bound)
