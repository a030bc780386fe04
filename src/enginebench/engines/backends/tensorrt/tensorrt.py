"""`tensorrt`: plans built and run through TensorRT's Python API, on a stream of their own, timed by CUDA events."""

from functools import partial
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.engine_api import read_index
from enginebench.core.errors import BackendUnavailable
from enginebench.core.names import require_precision
from enginebench.core.records import Artifact, Availability, EngineSpec, ResultWarning
from enginebench.engines import cuda
from enginebench.engines.abilities import Reader
from enginebench.engines.backends.tensorrt.builder import (
    build_plan,
    check_flags,
    check_version,
    choose_flags,
    read_batches,
    require_builder,
)
from enginebench.engines.backends.tensorrt.engine import WatchedPlanEngine, adopt_tensors
from enginebench.engines.backends.tensorrt.entries import TENSORRT
from enginebench.engines.backends.tensorrt.plan_store import PlanBackend, PlanRecord, describe_gpu, ensure_plan
from enginebench.engines.backends.tensorrt.settings import (
    INVENTED_RANGES,
    BuildSettings,
    check_calib_cache,
    find_newest_opset,
    fit_to_version,
    list_dla_warnings,
    read_plugins,
    read_settings,
)
from enginebench.engines.request import check_request, read_options
from enginebench.engines.tensorrt import load_plan
from enginebench.engines.tensorrt_library import (
    LEAN_NOTE,
    SYSTEM_FOLDER,
    Library,
    import_tensorrt,
    is_lean,
    is_of_system,
)

trt = import_tensorrt()
LIBRARY = Library(trt)

NAME, OPTIONS = TENSORRT.name, TENSORRT.options


class TensorRtBackend(PlanBackend):
    """ONNX graphs and finished plans through TensorRT's own Python module."""

    name = NAME

    def probe(self) -> Availability:
        """Available where the version is 8.6 or later and CUDA shows a GPU; the lean runtime says what it is."""
        try:
            check_version(LIBRARY)
        except BackendUnavailable as error:
            return Availability(engine=NAME, available=False, version=trt.__version__, reason=str(error))
        count = cuda.count_devices()
        notes = [LEAN_NOTE] if is_lean(trt) else []
        notes += [f"the bindings of {SYSTEM_FOLDER}, outside of this environment"] if is_of_system(trt) else []
        reason = "; ".join(notes) or None
        if not count:
            reason = cuda.explain_no_device()
        return Availability(
            engine=NAME,
            available=count > 0,
            version=trt.__version__,
            devices=tuple(f"cuda:{i}" for i in range(count)),
            reason=reason,
        )

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """A plan for this version, GPU and these settings: the stored one if there is one, else a new one."""
        check_request(artifact, spec, ("onnx", "plan"), TENSORRT.precisions, (spec.device,))
        options = read_options(spec, OPTIONS)
        if artifact.kind == "onnx":
            check_version(LIBRARY)
            require_builder(LIBRARY)
        cuda.use_device(read_index(spec))
        if artifact.kind == "plan":  # finished: with the inputs and outputs that it names itself
            LIBRARY.load_plugins(read_plugins(options))
            adopted = adopt_tensors(trt, load_plan(LIBRARY, Path(artifact.path), options), artifact, options)
            return replace(adopted, made_by={**artifact.made_by, "tensorrt": trt.__version__})
        settings = self._fit(read_settings(spec, options, artifact))
        if not settings.timing_cache and self._cache_dir is not None:
            settings = replace(settings, timing_cache=str(self._cache_dir / f"tensorrt-{trt.__version__}.timing"))
        gpu, flags = describe_gpu(settings.device), (repr(replace(settings, timing_cache=None)), options["calib_data"])
        record = PlanRecord(onnx_sha256=artifact.sha256, tensorrt=trt.__version__, gpu=gpu, flags=flags, engine=NAME)
        build = partial(self._build, artifact, settings, options, spec.batch)
        return ensure_plan(out_dir / "plans", record, artifact, spec, build, settings.profiles)

    def load(self, artifact: Artifact, spec: EngineSpec) -> WatchedPlanEngine:
        check_request(artifact, spec, ("plan",), TENSORRT.precisions, (spec.device,))
        options = read_options(spec, OPTIONS)
        cuda.use_device(read_index(spec))
        check_version(LIBRARY)
        LIBRARY.load_plugins(read_plugins(options))
        plan = load_plan(LIBRARY, Path(artifact.path), options)
        return WatchedPlanEngine(LIBRARY, plan, artifact, spec, options, self._reader)

    def describe_reader(self, spec: EngineSpec) -> Reader:
        """TensorRT, and the newest operator set that this version reads."""
        return Reader(f"TensorRT {trt.__version__}", find_newest_opset(trt.__version__))

    def check_ahead(self, artifact: Artifact, spec: EngineSpec) -> None:
        check_version(LIBRARY)
        check_flags(LIBRARY, self._fit(read_settings(spec, read_options(spec, OPTIONS), artifact)))

    def name_flags(self, spec: EngineSpec) -> dict[str, object]:
        """The names of the flags with which a program of its own builds what this engine builds of a graph."""
        options = read_options(spec, OPTIONS)
        settings = BuildSettings(
            precision=require_precision(spec.precision),
            weak_typing=options["weak_typing"] == "1",
            half_floats=options["floats"] == "fp16",
        )
        typed = hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED") and not settings.weak_typing
        return {
            "network": "STRONGLY_TYPED" if typed else "EXPLICIT_BATCH",
            "flags": list(choose_flags(LIBRARY, settings)),
            "tf32": settings.precision != "fp32",
        }

    def _fit(self, settings: BuildSettings) -> BuildSettings:
        return fit_to_version(settings, tuple(map(int, trt.__version__.split(".")[:3])))

    def _build(
        self, artifact: Artifact, settings: BuildSettings, options: dict[str, str], batch: int, plan: Path
    ) -> tuple[ResultWarning, ...]:
        first = artifact.inputs[0].shape[0] if artifact.inputs and artifact.inputs[0].shape else batch
        whole = first if isinstance(first, int) else batch  # a static graph takes no other
        batches = read_batches(Path(options["calib_data"]), whole) if options["calib_data"] else None
        if settings.calib_cache and (batches is None or Path(settings.calib_cache).exists()):
            check_calib_cache(Path(settings.calib_cache))
        LIBRARY.log.on_gpu.clear()
        build_plan(LIBRARY, Path(artifact.path), settings, plan, batches=batches, note=self._note)
        guessed = settings.weak_typing and settings.precision == "int8" and not (settings.calib_cache or batches)
        return ((INVENTED_RANGES,) if guessed else ()) + list_dla_warnings(settings, LIBRARY.log.on_gpu)


create_backend = TensorRtBackend
