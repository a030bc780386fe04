"""The search over programs that nobody compiled: chains and branches with faults planted in steps and in fusions."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.features.locate.judging import measure_deviation
from enginebench.features.locate.program import Step
from enginebench.features.locate.search import Fault, Search, bisect
from enginebench.features.locate.shrink import drop_steps


class Chain:
    """Steps that each add one to the sum of what they read; an engine that is wrong where whole fusions are in it."""

    inputs, outputs = ("x",), ("y",)
    folded: Collection[int] = ()
    drawing: Collection[int] = ()

    def __init__(self, steps: Sequence[Step], *, single: Collection[str] = (), fusions: Sequence[Sequence[str]] = ()):
        self.steps, self._single, self._fusions = steps, single, fusions
        self.values: dict[str, Any] = {"x": np.linspace(1, 2, 100)}
        self.values |= self.expect(range(len(steps)), [step.outputs[0] for step in steps], self.values)

    def slice_steps(self, places: Sequence[int]) -> Sequence[Sequence[int]]:
        return [places[: len(places) // 2], places[len(places) // 2 :]]

    def expect(self, places: Collection[int], wanted: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
        return self._run(places, wanted, values, wrong=())

    def compute(self, places: Collection[int], wanted: Sequence[str], values: Any, like: Any) -> dict[str, Any]:
        taken = {self.steps[i].name for i in places}
        whole = [f for f in self._fusions if taken.issuperset(f) and not set(f[:-1]) & set(wanted)]
        return self._run(places, wanted, values, wrong={*self._single, *(fusion[-1] for fusion in whole)})

    def _run(self, places: Any, wanted: Any, values: Any, wrong: Collection[str]) -> dict[str, Any]:
        known = dict(values)
        makers = (i for i, step in enumerate(self.steps) if step.outputs[0] in wanted)  # computed, as in a cut
        for step in (self.steps[i] for i in sorted({*places, *makers})):
            known[step.outputs[0]] = sum(known[name] for name in step.inputs) + 1 + (step.name in wrong)
        return {name: known[name] for name in wanted}


def make_chain(length: int, **faults: Any) -> Chain:
    """The steps s0, s1, ...; each tensor is called after the step that makes it, the last one y."""
    names = [f"s{i}" for i in range(length - 1)] + ["y"]
    reads = ["x", *names]
    return Chain([Step(name=n, kind="Add", inputs=(reads[i],), outputs=(n,)) for i, n in enumerate(names)], **faults)


def search(program: Chain) -> tuple[Search, Fault | None]:
    searched = Search(program, "fp32", lambda text: None)
    return searched, searched.find_first()


def test_a_program_without_a_fault_has_none() -> None:
    assert search(make_chain(40))[1] is None


@pytest.mark.parametrize("place", [0, 1, 19, 38])
def test_a_step_that_is_wrong_is_found_alone_in_few_cuts(place: int) -> None:
    searched, fault = search(make_chain(40, single=[f"s{place}"]))
    assert fault is not None
    assert (fault.indices, fault.wanted, fault.hidden_by) == ((place,), (f"s{place}",), ())
    assert searched.tried <= 10


def test_a_fusion_that_is_wrong_is_found_whole_and_what_hides_it_is_named() -> None:
    fault = search(make_chain(40, fusions=[["s20", "s21", "s22", "s23"]]))[1]
    assert fault is not None
    assert (fault.indices, fault.wanted) == ((20, 21, 22, 23), ("s23",))
    assert fault.hidden_by == ("s20", "s21", "s22")


class Shy(Chain):
    """An engine whose fault is there from the beginning of the model alone, not with tensors of the reference."""

    def compute(self, places: Collection[int], wanted: Sequence[str], values: Any, like: Any) -> dict[str, Any]:
        wrong = {"s20"} if set(values) == {"x"} else set[str]()
        return self._run(places, wanted, values, wrong=wrong)


def test_a_fault_that_cannot_be_cut_out_is_still_told() -> None:
    chain = make_chain(40)
    fault = search(Shy(chain.steps))[1]
    assert fault is not None and fault.deviations
    assert fault.indices == tuple(range(21)) and fault.wanted == ("s20",)


def test_only_the_tensors_that_a_cut_reads_are_read() -> None:
    class Counted(dict[str, Any]):
        read: ClassVar[set[str]] = set()

        def __getitem__(self, name: str) -> Any:
            self.read.add(name)
            return super().__getitem__(name)

    chain = make_chain(40, single=["s20"])
    chain.values = Counted(chain.values)
    searched = Search(chain, "fp32", lambda text: None)
    Counted.read.clear()

    def compute(places: Collection[int], wanted: Sequence[str], values: Any, like: Any) -> dict[str, Any]:
        assert len(values) > 30  # all that might be fed
        return chain._run(places, wanted, {"s19": values["s19"]}, wrong={"s20"})

    chain.compute = compute  # type: ignore[method-assign]
    assert searched.leaves([20], ["s20"], chain.values)
    assert Counted.read == {"s19", "s20"}


def test_of_two_faults_the_first_is_found() -> None:
    fault = search(make_chain(40, single=["s30"], fusions=[["s10", "s11"]]))[1]
    assert fault is not None
    assert fault.indices == (10, 11)


def test_a_fault_in_one_of_two_branches_is_found_there() -> None:
    def step(name: str, *reads: str) -> Step:
        return Step(name=name, kind="Add", inputs=reads, outputs=(name,))

    steps = [step("a", "x"), step("left", "a"), step("right", "a"), step("far", "right"), step("y", "left", "far")]
    fault = search(Chain(steps, fusions=[["right", "far"]]))[1]
    assert fault is not None
    assert ([steps[i].name for i in fault.indices], fault.wanted) == (["right", "far"], ("far",))


def test_steps_that_take_no_part_are_dropped() -> None:
    """The wider fusion is wrong already in two of its steps."""
    program = make_chain(12, fusions=[["s4", "s5", "s6", "s7", "s8"], ["s6", "s7"]])
    searched = Search(program, "fp32", lambda text: None)
    wide = searched.confirm(["s8"])
    assert wide.indices == (4, 5, 6, 7, 8) or wide.indices == (6, 7, 8)
    assert drop_steps(searched, wide).indices == (6, 7)


@pytest.mark.parametrize("first", range(7))
def test_bisection_finds_the_first_that_holds(first: int) -> None:
    assert bisect(range(7), lambda item: item >= first) == first


def test_what_leaves_its_reference() -> None:
    expected = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    one_row = expected.copy()
    one_row[3] *= 1.01
    lost = expected.copy()
    lost[0, 0] = np.nan
    cases = {
        "the same": (expected, False),
        "rounding": (expected * np.float32(1 + 1e-6), False),
        "one row": (one_row, True),
        "not finite": (lost, True),
        "another shape": (expected.reshape(64), True),
    }
    for name, (found, leaves) in cases.items():
        assert measure_deviation(expected, found, "fp32").leaves is leaves, name
    assert not measure_deviation(lost, lost, "fp32").leaves  # the reference has it, too
    assert measure_deviation(expected, one_row, "int8").leaves is False


def test_whole_numbers_are_compared_by_value() -> None:
    ids = np.arange(20)
    assert measure_deviation(ids, ids + (ids == 7) * 5, "fp32").leaves
    assert not measure_deviation(ids, ids, "fp32").leaves
    assert measure_deviation(np.array(["a", "b"]), np.array(["a", "c"]), "fp32").leaves
    assert replace(measure_deviation(ids, ids, "fp32"), snr_db=None).largest == 0


def test_what_hides_a_fault_is_not_sought_without_end() -> None:
    """Each look at this clock takes a second."""
    program = make_chain(80, fusions=[[f"s{i}" for i in range(10, 70)]])
    ticks = iter(range(1000))
    fault = Search(program, "fp32", lambda text: None, lambda: float(next(ticks))).find_first()
    assert fault is not None and fault.indices == tuple(range(10, 70))
    assert fault.hidden_by == tuple(f"s{i}" for i in range(10, 25)) and fault.untried == 44


def test_a_step_that_draws_is_given_what_the_reference_drew() -> None:
    """It is never right; what is behind it is found all the same, and nothing where there is no other fault."""
    steps = [*make_chain(20).steps]
    steps[-1] = replace(steps[-1], inputs=("s18", "s5"))  # so that it passes the cuts between
    for faults, wrong in (
        ({"single": ["s5"]}, None),
        ({"single": ["s5", "s9"]}, (9,)),
        ({"single": ["s5"], "fusions": [["s8", "s9"]]}, (8, 9)),  # no single tensor shows it
    ):
        program = Chain(steps, **faults)
        program.drawing = (5,)
        fault = search(program)[1]
        assert (fault and fault.indices) == wrong


def test_with_every_tensor_marked_a_fault_needs_no_bisection() -> None:
    searched, fault = search(make_chain(300, single=["s200"]))
    assert fault is not None and fault.indices == (200,)
    assert searched.tried <= 6


def test_a_fault_behind_the_first_is_found_from_there() -> None:
    searched, fault = search(make_chain(40, single=["s30"], fusions=[["s10", "s11"]]))
    assert fault is not None
    later = searched.find_first(max(fault.indices) + 1)
    assert later is not None and later.indices == (30,)
    assert searched.find_first(31) is None


def test_values_that_are_finite_here_alone_are_counted() -> None:
    deviation = measure_deviation(np.array([np.nan, np.inf, 1.0]), np.array([0.0, np.inf, 1.0]), "fp32")
    assert deviation.leaves and (deviation.tamed, deviation.nonfinite) == (1, 0)
