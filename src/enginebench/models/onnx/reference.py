"""Run an ONNX graph as it is written, without any optimizer, for outputs to compare engines with."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from enginebench.core.errors import ArtifactError, importing
from enginebench.core.operators import register_operators
from enginebench.core.protocols import Array
from enginebench.core.sums import keep_sums_exact, open_cpu_session, sums_saturate
from enginebench.core.text import first_line

# The tool that ran the graph, as messages name it.
UNOPTIMIZED = "ONNX Runtime without graph optimizations"
EVALUATOR = "onnx's reference evaluator"
# A difference above this fraction of an output's largest value is not FP32 rounding: built-in networks differ by 1e-7
# to 3e-5 between two orders of sums.
CHANGED = 1e-3
FATAL_ONLY = 4  # level of ONNX Runtime's log: the caller reports its refusals


def open_reference_session(
    model: str | bytes, libraries: Sequence[str] = (), *, optimize: bool, threads: int | None = None
) -> Any:
    """Open a session of ONNX Runtime on the CPU, with all of its graph optimizations or with none.

    Without any, sums of 8-bit products are exact as well: their weights are made unsigned where signed ones saturate.

    Args:
        model: the path of the file, or the graph itself.
        libraries: of its custom operators.
        threads: None: ONNX Runtime's default.
    """
    with importing("onnxruntime, which runs graphs to check them,", 'pip install "enginebench[ort]"'):
        import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if threads is not None:
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    keep_sums_exact(options)
    register_operators(options, libraries)
    if not optimize and sums_saturate():
        from enginebench.models.onnx.unsigned import write_unsigned

        with suppress(Exception):  # signed activations have no kernel for unsigned weights; other faults show below
            if unsigned := write_unsigned(model):
                return open_cpu_session(unsigned, options)
    return open_cpu_session(model, options)


class GraphReference:
    """Runs a graph as it is written: in `UNOPTIMIZED`, or in `EVALUATOR` once that refused the graph or a call."""

    def __init__(self, path: Path, libraries: Sequence[str] = ()) -> None:
        self._path, self._session, self._evaluator = path, None, None
        self.refusal: Exception | None = None  # of ONNX Runtime
        try:
            self._session = open_reference_session(str(path), libraries, optimize=False)
        except ArtifactError:
            raise
        except Exception as error:  # ONNX Runtime has a class of its own for every kind of failure
            self.refusal = error

    @property
    def tool(self) -> str:
        return UNOPTIMIZED if self._evaluator is None else EVALUATOR

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name.

        Raises:
            ArtifactError: neither can run the graph on these inputs; with the reason of each.
        """
        if self._session is not None:
            try:
                names = [output.name for output in self._session.get_outputs()]
                return dict(zip(names, self._session.run(None, dict(feeds)), strict=True))
            except Exception as error:  # as above
                self.refusal = error
        try:
            outputs = self._evaluate(feeds)
        except Exception as error:  # NumPy's, or those of the evaluator: operators that it lacks, too
            reasons = f"{UNOPTIMIZED}: {first_line(self.refusal or Exception())}; {EVALUATOR}: {first_line(error)}"
            raise ArtifactError(f"the graph cannot be run on the CPU. {reasons}") from error
        self._session = None
        return outputs

    def _evaluate(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        from onnx.reference import ReferenceEvaluator

        evaluator = self._evaluator or ReferenceEvaluator(str(self._path))
        with np.errstate(all="ignore"):  # infinities are outputs like others
            outputs = evaluator.run(None, dict(feeds))
        self._evaluator = evaluator
        return dict(zip(evaluator.output_names, outputs, strict=True))


def keeps_outputs(original: Path, converted: Path, feeds: Mapping[str, Array], libraries: Sequence[str] = ()) -> bool:
    """Return whether a converted graph has the outputs of the original on these inputs, both run as they are written.

    True also if the original cannot be run here, so that there is nothing to compare with.
    """
    try:
        expected = open_reference_session(str(original), libraries, optimize=False).run(None, dict(feeds))
    except ArtifactError:
        raise
    except Exception:  # ONNX Runtime has a class of its own for every kind of failure
        return True
    try:
        actual = open_reference_session(str(converted), libraries, optimize=False).run(None, dict(feeds))
    except Exception:  # as above
        return False
    return all(_is_alike(np.asarray(a), np.asarray(b)) for a, b in zip(expected, actual, strict=True))


def _is_alike(expected: Array, actual: Array) -> bool:
    if expected.shape != actual.shape:
        return False
    if expected.dtype.kind not in "fiub":
        return np.array_equal(expected, actual)
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(actual)):
        return False
    a, b = (np.where(finite, array, 0).astype(np.float64) for array in (expected, actual))
    return bool(np.max(np.abs(a - b), initial=0.0) <= CHANGED * np.max(np.abs(a), initial=0.0))
