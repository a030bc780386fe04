"""What `roofline`, and whoever bounds a row, asks of a child."""

from msgspec import Struct

from enginebench.core.ceilings import Ceiling
from enginebench.core.records import Precision
from enginebench.features.roofline.work import GraphWork
from enginebench.runs.child.jobs import Job, KeepCall, NoteCall


class CeilingsAnswer(Struct, frozen=True, kw_only=True):
    ceilings: tuple[Ceiling, ...]
    notes: tuple[str, ...] = ()


class CeilingsJob(Job[CeilingsAnswer], frozen=True, kw_only=True, tag="ceilings"):
    """Find the best that a device does, in this process."""

    timed = True

    device: str
    precisions: tuple[Precision, ...]  # empty: all that the device has instructions for
    threads: int
    budget_s: float  # for each ceiling in each repetition
    repetitions: int = 1
    quick: bool = False

    def perform(self, note: NoteCall, keep: KeepCall[CeilingsAnswer]) -> CeilingsAnswer:
        from enginebench.features.roofline.child import perform_ceilings

        return perform_ceilings(self, note)


class WorkAnswer(Struct, frozen=True, kw_only=True):
    work: GraphWork


class WorkJob(Job[WorkAnswer], frozen=True, kw_only=True, tag="work"):
    """Count what every node of an ONNX graph has to do, with inputs of these shapes."""

    path: str
    shapes: dict[str, tuple[int, ...]]
    batch: int = 1  # of inputs whose shapes are not given

    def perform(self, note: NoteCall, keep: KeepCall[WorkAnswer]) -> WorkAnswer:
        from enginebench.features.roofline.counting import count_work

        return WorkAnswer(work=count_work(self.path, self.shapes, self.batch))
