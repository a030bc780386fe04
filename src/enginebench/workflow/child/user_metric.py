"""A user's metric: imported from the user's folder, called, and held to what it may return."""

from __future__ import annotations

import importlib
import linecache
import math
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from enginebench.analyze.metrics.metric import Ask, Metric, Outputs, Targets, count_samples, pick_samples
from enginebench.core.errors import UsageError
from enginebench.core.text import name_type

if TYPE_CHECKING:
    from enginebench.analyze.metrics.metric import Floats, Picks

EXPECTED = "expected a number, or one number for each sample"


class UserMetric(Struct, frozen=True, kw_only=True, eq=False):
    """`package.module:function`, and whether more of it is better: its attribute `higher_is_better`."""

    text: str
    function: Callable[[Any, Any], Any]
    higher_is_better: bool = True

    def call(self, outputs: Outputs, targets: Targets) -> float | Floats:
        """What the function says of these samples: one number, or one for each.

        Raises:
            UsageError: it raised, with the line of its code; or returned something else.
        """
        given = next(iter(outputs.values())) if len(outputs) == 1 else dict(outputs)
        n = count_samples(outputs)
        try:
            found = self.function(given, targets.values)
        except Exception as error:  # user code: anything can come out of it
            raise UsageError(f"--metric {self.text} {locate(error, self.function)}") from error
        return self._read(found, n)

    def _read(self, found: Any, n: int) -> float | Floats:
        if isinstance(found, str | bytes | Mapping) or found is None:
            told = repr(found) if isinstance(found, str) else name_type(found)
            raise UsageError(f"--metric {self.text} returned {told}; {EXPECTED}")
        try:
            values = np.asarray(found, np.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"--metric {self.text} returned {name_type(found)} ({error}); {EXPECTED}") from error
        if values.ndim == 0:
            return float(values)
        if values.shape != (n,):
            raise UsageError(f"--metric {self.text} returned shape {list(values.shape)} for {n} samples; {EXPECTED}")
        return values

    def as_whole(self) -> Metric:
        """The metric that looks at all samples together."""

        def prepare(outputs: Outputs, targets: Targets) -> Ask:
            def ask(places: Picks) -> float:
                found = self.call(pick_samples(outputs, places), targets.pick(places))
                if not isinstance(found, float):
                    return float(found.mean())
                return found

            return ask

        return Metric(name=self.text, higher_is_better=self.higher_is_better, share=False, prepare=prepare)

    def as_counted(self) -> Metric:
        """The metric that says something of each sample."""

        def count(outputs: Outputs, targets: Targets) -> Floats:
            found = self.call(outputs, targets)
            if isinstance(found, float):
                raise UsageError(f"--metric {self.text} returned a number for some samples, and one for each before")
            if wrong := [i for i, value in enumerate(found) if not math.isfinite(value)]:
                raise UsageError(
                    f"--metric {self.text} returned {found[wrong[0]]} for {len(wrong)} of {len(found)} samples; "
                    "expected finite numbers"
                )
            return np.stack([found, np.ones_like(found)], axis=1)

        return Metric(name=self.text, higher_is_better=self.higher_is_better, share=False, count=count)


def load_metric(text: str) -> UserMetric:
    """The function that `package.module:function` names, from the user's folder.

    Raises:
        UsageError: it cannot be imported, is not there, or cannot be called.
    """
    module, _, attribute = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # as `python -m` has it, so that a file beside the user is found
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # user code: anything can come out of it
        raise UsageError(f"--metric {text}: cannot import {module}: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"--metric {text}: {module} has no {attribute!r}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"--metric {text}: {attribute} is {name_type(found)}; expected f(outputs, targets)")
    higher = getattr(found, "higher_is_better", True)
    if not isinstance(higher, bool):
        raise UsageError(f"--metric {text}: higher_is_better is {higher!r}; expected True or False")
    return UserMetric(text=text, function=found, higher_is_better=higher)


def locate(error: BaseException, function: Callable[..., Any]) -> str:
    """What a user's function raised, and where in its own file: the line that the user can mend."""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    told = f"raised {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    frame = (own or frames[1:] or frames)[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"{told} ({Path(frame.filename).name}, line {frame.lineno}: {line})"
