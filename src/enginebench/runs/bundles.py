"""`bundle.json`, the record of a bundle. The programs of the bundle read the same fields, without this package."""

from typing import Any

from msgspec import Struct, field

from enginebench.core.errors import ArtifactError
from enginebench.core.judging import is_plain
from enginebench.core.records import (
    Artifact,
    Drift,
    EngineSpec,
    Estimate,
    FileHash,
    Machine,
    Outputs,
    Precision,
    ResultWarning,
    Scope,
    Score,
    Validity,
    Verdict,
)

BUNDLE_SCHEMA = "enginebench.bundle/1"


class Figures(Struct, frozen=True, kw_only=True):
    """The measured figures, as in the table of the run. Times in ms."""

    p50_ms: Estimate
    p99_ms: Estimate | None
    throughput_per_s: float | None
    speedup: Estimate | None
    baseline: str | None  # id of the configuration that `speedup` is taken against
    verdict: Verdict | None
    validity: Validity
    processes: int
    n: int
    outputs_agree: bool | None  # None: there was nothing to compare with
    outputs: Outputs = "not_judged"  # the run's verdict, against the reference that `drift` of the bundle names
    outputs_reason: str = ""


class Module(Struct, frozen=True, kw_only=True):
    """The way in which the PyTorch module is made before its weights are loaded."""

    kind: str  # "source": `name` in the bundle's `file`; "torchvision", "timm": `name` there, with `arguments`
    name: str
    file: str | None = None
    arguments: dict[str, Any] = {}
    flat: bool = False  # its output is flattened to tensors


class Bundle(Struct, frozen=True, kw_only=True):
    """A delivered configuration. Paths are relative to the bundle."""

    schema: str = BUNDLE_SCHEMA
    model: str
    row: str
    engine: EngineSpec  # with the requested precision, by which the engine is set
    options: dict[str, str] = {}  # of the engine, all of them, defaults included
    precision: Precision | None  # that ran, by the runtime's own record
    scope: Scope
    engine_version: str | None
    artifact: Artifact  # what the engine opens
    chain: tuple[Artifact, ...]  # where it comes from, the first source first; these files are not in the bundle
    files: tuple[FileHash, ...]
    environment: dict[str, str]  # variables of the process that was measured
    padding: dict[str, tuple[int, int]] = {}  # {axis: (multiple, longest)} of inputs; {}: they are not padded
    pinned_cpus: tuple[int, ...] | None
    runtime: dict[str, str]  # package -> version that the measured figures depend on
    requirements: dict[str, str]  # package -> version, all that the bundle needs
    instructions: tuple[str, ...]  # of the CPU, with which it was measured in less than FP32
    gpu: str | None
    limits: dict[str, float]  # for `predict.py --check`
    check_seed: int
    figures: Figures
    machine_name: str
    machine: Machine | None
    drift: Drift | None
    scores: tuple[Score, ...] = ()
    effective_precision: dict[str, float] | None
    warnings: tuple[ResultWarning, ...] = field(name="caveats")
    measured_utc: str
    module: Module | None = None
    made_by: dict[str, str] = {}


def check_name(name: str) -> None:
    """Check that a path inside a bundle has only plain parts; raises ArtifactError."""
    if not is_plain(name):
        raise ArtifactError(
            f"{name!r} cannot be the name of a file in a bundle; expected parts of letters, digits, dots, hyphens and "
            "underscores. Rename the file, and what the model calls it"
        )
