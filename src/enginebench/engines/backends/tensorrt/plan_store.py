"""Keeps plans by everything that determines them: graph, TensorRT's version, GPU, flags. Building takes minutes."""

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from enginebench.core.cuda_devices import find_handle
from enginebench.core.errors import ArtifactError, ParseError
from enginebench.core.records import Artifact, EngineSpec, ResultWarning, ShapeRange
from enginebench.core.shapes import drop_plan_shapes, set_plan_shapes
from enginebench.core.store import derive, encode, explain_writing, hash_file, read_record, write_atomic
from enginebench.engines.abilities import PlanReader
from enginebench.engines.backends.tensorrt.settings import ShapeProfile, read_profiles

UNKNOWN_GPU = "unknown GPU"


class PlanRecord(Struct, frozen=True, kw_only=True):
    """Everything that determines a plan: equal records mean the same plan."""

    onnx_sha256: str
    tensorrt: str
    gpu: str
    flags: tuple[str, ...]
    engine: str

    @property
    def key(self) -> str:
        """A file name: sixteen hex digits over all fields."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


class StoredPlan(Struct, frozen=True, kw_only=True):
    """The file beside a plan: what made it, and its hash."""

    schema: str = "enginebench.plan/1"
    record: PlanRecord
    sha256: str
    build_s: float
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")


class PlanBackend:
    """The common part of the backends that make plans: a cache, the reader of the tool's files, and progress."""

    def __init__(self, cache_dir: Path | None = None) -> None:
        self._cache_dir = cache_dir
        self._reader: PlanReader | None = None
        self._note: Callable[[str], None] = lambda text: None

    def take_reader(self, reader: PlanReader) -> None:
        self._reader = reader

    def take_note(self, note: Callable[[str], None]) -> None:
        self._note = note

    def run_at_best(self, artifact: Artifact, spec: EngineSpec) -> EngineSpec:
        """The spec that runs the plan at the shapes that its chosen profile is tuned for, without a CUDA graph.

        Any other shape may lie outside of the profile: 1 does where the smallest batch is 4.
        """
        options = {key: spec.options.get(key, "") for key in ("min_shapes", "opt_shapes", "max_shapes", "profiles")}
        profiles = read_profiles(spec, options, artifact)
        index = int(spec.options.get("profile_index", "0"))
        plain = replace(spec, options={**spec.options, "graph": "0"})
        if index >= len(profiles):
            return plain
        best = profiles[index].best
        batch = next((shape[0] for shape in best.values() if shape), spec.batch)
        return set_plan_shapes(replace(drop_plan_shapes(plain), batch=batch), best)


def ensure_plan(
    folder: Path,
    record: PlanRecord,
    artifact: Artifact,
    spec: EngineSpec,
    build: Callable[[Path], tuple[ResultWarning, ...]],
    profiles: Sequence[ShapeProfile] = (),
) -> Artifact:
    """The plan of `record` as an artifact, built now if the folder has none, with the shapes of its first profile."""
    path = folder / f"{record.key}.plan"
    stored = _find_plan(path) or _make_plan(path, record, build)
    allowed = {
        name: ShapeRange(smallest=shapes.smallest[name], largest=shapes.largest[name], best=best)
        for shapes in profiles[:1]
        for name, best in shapes.best.items()
    }
    return derive(
        artifact,
        [path],
        folder,
        kind="plan",
        precision=spec.precision,
        recipe=spec.recipe or artifact.recipe,
        made_by={"tensorrt": record.tensorrt},
        made_with=artifact.made_with | {key: spec.options[key] for key in spec.options.keys() & {"workspace_mb"}},
        export_check=None,
        opset=None,
        warnings=stored.warnings,
        allowed=allowed,
    )


def _find_plan(path: Path) -> StoredPlan | None:
    """The stored plan, if its file is still the one that was stored."""
    try:
        stored = read_record(path.with_suffix(".json"), StoredPlan)
    except ParseError:
        return None
    return stored if path.is_file() and hash_file(path) == stored.sha256 else None


def _make_plan(path: Path, record: PlanRecord, build: Callable[[Path], tuple[ResultWarning, ...]]) -> StoredPlan:
    """A new plan. It is built under another name, so that a build that was killed leaves no plan."""
    part = path.with_suffix(".part")
    with explain_writing(part):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
    start = time.perf_counter()
    try:
        warnings = build(part)
        build_s = time.perf_counter() - start
        require_plan(part)
        stored = StoredPlan(record=record, sha256=hash_file(part), build_s=build_s, warnings=warnings)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    write_atomic(path.with_suffix(".json"), encode(stored, indent=2))
    return stored


def require_plan(path: Path) -> None:
    """Check that the file exists and is not empty; an empty one is removed."""
    if path.is_file() and path.stat().st_size > 0:
        return
    path.unlink(missing_ok=True)
    raise ArtifactError(f"the build left no plan at {path.name}, or an empty one")


def describe_gpu(index: int) -> str:
    """The GPU's name by NVML, or `unknown GPU` where NVML cannot be asked."""
    name = _ask_nvml(index, "nvmlDeviceGetName")
    if name is None:
        return UNKNOWN_GPU
    return name.decode() if isinstance(name, bytes) else str(name)


def read_capability(index: int) -> str | None:
    """The GPU's compute capability, such as `8.9`; None where NVML cannot be asked."""
    capability = _ask_nvml(index, "nvmlDeviceGetCudaComputeCapability")
    return None if capability is None else ".".join(map(str, capability))


def _ask_nvml(index: int, question: str) -> Any:
    """Ask NVML about one GPU; None without package, library, driver or such a GPU: a plan is kept all the same."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return getattr(pynvml, question)(find_handle(pynvml, index))
    except Exception:
        return None
