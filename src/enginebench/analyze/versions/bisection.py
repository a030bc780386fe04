"""The first bad one of a row of versions, found by halving it: each step asks for a verdict, none is guessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

# A verdict that is not shown is asked for again with this many times the repetitions, at most so often.
MORE, TRIES = 2, 3

Judgement = Literal["good", "bad", "not_shown", "not_comparable"]


class Step(Struct, frozen=True, kw_only=True):
    """What was found out about one version, with how many repetitions."""

    version: str
    judgement: Judgement
    repetitions: int


class Bisection(Struct, frozen=True, kw_only=True):
    """The outcome. `first_bad` is None where it lies in `undecided`, none of which could be told good from bad."""

    first_bad: str | None
    last_good: str
    undecided: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()


def bisect_versions(
    versions: Sequence[str], judge: Callable[[str, int], Judgement], *, repetitions: int
) -> Bisection | None:
    """Where good versions end and bad ones begin; None if the last version is not bad.

    A version between the two that cannot be told, however often it is measured, or that cannot be measured at all, is
    passed over for one of its neighbours; those that are left at the end are `undecided`.

    Args:
        versions: oldest first; the first is good by definition.
        judge: a version, measured so many times.
        repetitions: of the first try at each.
    """
    steps: list[Step] = []

    def ask(index: int) -> Judgement:
        count = repetitions
        for _ in range(TRIES):
            found = judge(versions[index], count)
            steps.append(Step(version=versions[index], judgement=found, repetitions=count))
            if found != "not_shown":
                return found
            count *= MORE
        return "not_shown"

    good, bad, unknown = 0, len(versions) - 1, set[int]()
    if ask(bad) != "bad":
        return None
    while open_ones := [i for i in range(good + 1, bad) if i not in unknown]:
        middle = min(open_ones, key=lambda i: (abs(2 * i - good - bad), i))
        found = ask(middle)
        if found == "good":
            good = middle
        elif found == "bad":
            bad = middle
        else:
            unknown.add(middle)
    between = tuple(versions[i] for i in range(good + 1, bad))
    return Bisection(
        first_bad=None if between else versions[bad],
        last_good=versions[good],
        undecided=(*between, versions[bad]) if between else (),
        steps=tuple(steps),
    )
