"""What an ONNX graph computes as it is written: outputs that no optimizer had a hand in."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from enginebench.core.errors import ArtifactError, importing
from enginebench.core.operators import register_operators
from enginebench.core.protocols import Array
from enginebench.core.sums import keep_sums_exact, open_cpu_session
from enginebench.core.text import first_line

# What ran the graph, as messages name it.
UNOPTIMIZED = "ONNX Runtime without graph optimizations"
EVALUATOR = "onnx's reference evaluator"
# A difference above this fraction of an output's largest value is no rounding of FP32: built-in networks differ by 1e-7
# to 3e-5 between two orders of sums.
CHANGED = 1e-3
FATAL_ONLY = 4  # of ONNX Runtime's log: its refusals are reported by whoever asked


def open_reference_session(
    model: str | bytes, libraries: Sequence[str] = (), *, optimize: bool, threads: int | None = None
) -> Any:
    """A session of ONNX Runtime on the CPU: with all of its graph optimizations, or with none.

    Args:
        model: the path of the file, or the graph itself.
        libraries: of its custom operators.
        threads: how many compute; None: as many as ONNX Runtime takes by itself.
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
        """The outputs by name.

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
            found = evaluator.run(None, dict(feeds))
        self._evaluator = evaluator
        return dict(zip(evaluator.output_names, found, strict=True))


def keeps_outputs(given: Path, made: Path, feeds: Mapping[str, Array], libraries: Sequence[str] = ()) -> bool:
    """Whether a graph that was made of another has its outputs on these inputs, both as they are written.

    Also if the given one cannot be run here, so that nothing is known against the other.
    """
    try:
        wanted = open_reference_session(str(given), libraries, optimize=False).run(None, dict(feeds))
    except ArtifactError:
        raise
    except Exception:  # ONNX Runtime has a class of its own for every kind of failure
        return True
    try:
        found = open_reference_session(str(made), libraries, optimize=False).run(None, dict(feeds))
    except Exception:  # as above
        return False
    return all(_is_alike(np.asarray(a), np.asarray(b)) for a, b in zip(wanted, found, strict=True))


def _is_alike(wanted: Array, found: Array) -> bool:
    if wanted.shape != found.shape:
        return False
    if wanted.dtype.kind not in "fiub":
        return np.array_equal(wanted, found)
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(found)):
        return False
    a, b = (np.where(finite, array, 0).astype(np.float64) for array in (wanted, found))
    return bool(np.max(np.abs(a - b), initial=0.0) <= CHANGED * np.max(np.abs(a), initial=0.0))
