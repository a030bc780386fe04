"""What PyTorch's profiler says of the engines on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from enginebench.core.precisions import UNKNOWN
from enginebench.core.records import Artifact, EngineSpec, LayerProfile
from enginebench.engines.backends.torch.operators import (
    describe_modules,
    mark_modules,
    name_modules,
    read_operator_times,
)
from enginebench.engines.proof import Operator, prove_precision, record_profile, summarize_layers
from enginebench.engines.pytorch import TorchEngine

if TYPE_CHECKING:
    from enginebench.engines.backends.torch.generated import GeneratedCode

PROFILER = "PyTorch's profiler"
EAGER_NOTE = "layers are modules; an operator outside of a module that has no children is one of its own"
COMPILED_NOTE = "layers are modules, or several where torch.compile made one kernel of them"
PLAIN_NOTE = "layers are operators and generated kernels: {why}"


class Generated:
    """What an engine knows of the code that a compiler made of its module: nothing where none is compiled."""

    def __init__(self, *others: Any, generated: GeneratedCode | None = None, **named: Any) -> None:
        self._generated = generated
        super().__init__(*others, **named)

    def close(self) -> None:
        """Frees module and tensors; may be called twice."""
        super().close()  # type: ignore[misc]  # of the engine that comes after this class
        self._generated = None


class WatchedTorchEngine(Generated, TorchEngine):
    """The engine, and what PyTorch's profiler says of it."""

    def __init__(
        self, call: Any, artifact: Artifact, spec: EngineSpec, options: Mapping[str, str], **named: Any
    ) -> None:
        super().__init__(call, artifact, spec, options, **named)
        # Generated code multiplies integers in max-autotune alone; otherwise it dequantizes what it multiplies.
        self._dequantizes = spec.precision == "int8" and options.get("mode") != "max-autotune"

    def effective_precision(self) -> dict[str, float]:
        """Shares of operator time by precision, from PyTorch's profiler and its settings as they are after the run.

        "unknown" is the time inside a compiled graph for which no operator answers: generated kernels leave no types
        in the record. Where no kernel of eight bits answers either, generated code computed all of it in floats.
        """
        shares = prove_precision(self._watch())
        if self._dequantizes and "int8" not in shares and UNKNOWN in shares:
            shares["fp32"] = shares.get("fp32", 0.0) + shares.pop(UNKNOWN)
        return shares

    def profile_layers(self) -> LayerProfile:
        """Modules as layers, from the same record as the proof of precision."""
        runs = self._watch()
        if self._generated is None:
            return summarize_layers(runs, PROFILER, (EAGER_NOTE,))
        runs, why = self._generated.name_layers(runs, self._tensors)
        return summarize_layers(runs, PROFILER, (PLAIN_NOTE.format(why=why) if why else COMPILED_NOTE,))

    def _watch(self) -> list[list[Operator]]:
        """A few runs under the profiler. An eager module has hooks meanwhile, which say whose operators are whose, and
        of a compiled one the kernels are marked.
        """
        self._check_bound()
        if not self._watched:
            modules = {} if self._generated else name_modules(self._call)
            with self._generated.mark() if self._generated else mark_modules(modules):
                recorded = record_profile(self._run, record_shapes=True)
            self._watched = [list(read_operator_times(events, describe_modules(modules))) for events in recorded]
        return self._watched
