"""Builds: how many a configuration has, which may run at the same time (nothing is timed then), their record."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError, UsageError
from enginebench.core.records import Artifact, Build, EngineSpec, Machine, ResultWarning
from enginebench.core.warnings import make_warning
from enginebench.engines.registry import find_entry
from enginebench.runs.child.arrays import load_outputs
from enginebench.runs.child.environments import OPTION
from enginebench.runs.child.jobs import BuildJob, BuildResponse, PrepareJob, PrepareResponse
from enginebench.runs.plan import PlannedConfiguration
from enginebench.stats.drift import measure_drift

J = TypeVar("J", BuildJob, PrepareJob)
R = TypeVar("R", BuildResponse, PrepareResponse)

# Options that name a file which builds would share.
SHARED = ("timing_cache",)
# All wait for the slowest, torch.compile's, whose import keeps one CPU busy: the fewer groups the better.
MOST_AT_ONCE = 16
# A process that has imported PyTorch and its compiler holds about half of this.
BYTES_OF_ONE = 1 << 30
# A model lies in memory as its file, its graph, what the engine makes of it, and what flows through it.
COPIES = 4
# The fraction of the free memory that builds use; the rest covers other processes and estimates that are too low.
SHARE_OF_MEMORY = 0.5
# GPU memory that a builder of plans may try for one layer, where no option bounds it.
SCRATCH_BYTES = 16 << 30

# A builder of plans that ran out of memory is tried again with less: MiB of workspace, and how hard it searches.
LESS_MEMORY = ((1024, 2), (256, 0))
# In the words of CUDA, of TensorRT, of C++, and where the kernel ended the process.
EXHAUSTED = re.compile(r"out of memory|OutOfMemory|cudaErrorMemoryAllocation|bad_alloc|SIGKILL")


def run_in_memory(job: J, run: Callable[[J], R], say: Callable[[str], None]) -> R:
    """Run a job that builds; if memory ran out, again with less workspace and a shorter search, with a warning."""
    takes_less = {"workspace_mb", "optimization_level"} <= find_entry(job.engine.backend).options.keys()
    attempts = iter(LESS_MEMORY if takes_less else ())
    warnings: tuple[ResultWarning, ...] = ()
    while True:
        try:
            response: R = run(job)
            warned = replace(response.artifact, warnings=(*response.artifact.warnings, *warnings))
            return replace(response, artifact=warned)
        except EngineBenchError as error:
            less = next(attempts, None) if EXHAUSTED.search(str(error)) else None
            if less is None:
                raise
        workspace, level = (
            min(most, int(job.engine.options.get(key) or most))
            for key, most in zip(("workspace_mb", "optimization_level"), less, strict=True)
        )
        say(f"memory ran out: building again with {workspace} MiB of workspace, at optimization level {level}")
        options = {**job.engine.options, "workspace_mb": str(workspace), "optimization_level": str(level)}
        job = replace(job, engine=replace(job.engine, options=options))
        warnings = (
            make_warning(
                "environment.setting",
                setting="workspace of the build",
                value=f"{workspace} MiB, its optimization level {level}",
                effect="memory ran out with more, and the plan may be slower",
                cure="free memory and build again, or give workspace_mb and optimization_level that fit",
            ),
        )


def can_wait(engine: EngineSpec) -> bool:
    """Whether a child may import its engine before its turn; not one of another environment, where it may fail."""
    return OPTION not in engine.options


def count_at_once(machine: Machine) -> int:
    """The number of children that may have imported at a time: as many as fit into half of the memory."""
    return int(max(1, min(MOST_AT_ONCE, find_memory(machine) // (2 * BYTES_OF_ONE))))


def find_memory(machine: Machine) -> int:
    """The free memory in bytes, at most the limit of a container, which the figure of the system does not include."""
    free = psutil.virtual_memory().available
    return min(free, machine.memory_limit_bytes or free)


def split_runs(configurations: Sequence[PlannedConfiguration], machine: Machine) -> list[list[PlannedConfiguration]]:
    """Split the configurations into groups that may be built at the same time.

    Engines whose builders time kernels to choose among them come after all others and alone: what runs beside them
    would change their choice. Plans of one engine are the exception (`Builder.beside_itself`), where the GPU has room
    for the scratch memory of each. The others keep their order; memory must hold each of a group with its model.
    """
    runs: list[list[PlannedConfiguration]] = []
    for configuration in sorted(configurations, key=lambda configuration: tunes(configuration.engine)):
        # In the order of the plan engines take turns: plans of one engine also join an earlier run of theirs.
        beside = (
            run
            for run in runs
            if _choose_alike(run[0].engine, configuration.engine) and fit_in_memory([*run, configuration], machine)
        )
        if (run := next(beside, None)) is not None:
            run.append(configuration)
        else:
            runs.append([configuration])
    return runs


def fit_in_memory(configurations: Sequence[PlannedConfiguration], machine: Machine) -> bool:
    """Whether the memory of the machine, and of its GPUs, holds the builds of all of these at the same time."""
    free_bytes = {"cpu": find_memory(machine), **{f"cuda:{gpu.index}": gpu.memory_bytes for gpu in machine.gpus}}
    return all(
        sum(_count_bytes(planned, folder) for planned in configurations if folder in ("cpu", planned.engine.device))
        <= SHARE_OF_MEMORY * available
        for folder, available in free_bytes.items()
    )


def _choose_alike(one: EngineSpec, other: EngineSpec) -> bool:
    """Whether the builders of two engines choose the same kernels beside each other as alone."""
    if not (tunes(one) or tunes(other)):
        return True
    return one.backend == other.backend and find_entry(one.backend).builder.beside_itself


def tunes(engine: EngineSpec) -> bool:
    """Whether the builder times kernels. A compiler for GPUs and CPUs does so on a CPU only with max-autotune."""
    autotunes = any(value.startswith("max-autotune") for value in engine.options.values())
    return find_entry(engine.backend).builder.tunes and (engine.device != "cpu" or autotunes)


def builds_slowly(engine: EngineSpec) -> bool:
    """Whether a build may take minutes: it compiles code, or times kernels."""
    return find_entry(engine.backend).builder.tunes


def count_workers(machine: Machine) -> int:
    """The number of builds at a time: one for each CPU, since most of a build runs in a single thread."""
    return max(1, int(min(len(machine.cpus_allowed), machine.cpu_quota_cores or len(machine.cpus_allowed))))


def count_at_a_time(source: Artifact, machine: Machine) -> int:
    """The number of graphs made from a source at a time: one for each worker, at most as many as fit into memory."""
    return max(1, min(count_workers(machine), int(SHARE_OF_MEMORY * find_memory(machine)) // _count_held(source)))


def _count_bytes(planned: PlannedConfiguration, folder: str) -> int:
    takes_scratch = folder != "cpu" and find_entry(planned.engine.backend).builder.beside_itself
    return _count_held(planned.source) + (SCRATCH_BYTES if takes_scratch else 0)


def _count_held(source: Artifact | None) -> int:
    return BYTES_OF_ONE + COPIES * sum(file.size_bytes for file in (source.files if source is not None else ()))


def count_builds(configuration: PlannedConfiguration) -> int:
    """The number of builds: the requested one, or 1 where the engine keeps no build."""
    entry, options = find_entry(configuration.engine.backend), configuration.engine.options
    if configuration.measure.builds == 1 or configuration.source is None or entry.builder.kept_with is None:
        return 1
    starts_anew = all(options.get(key) == value for key, value in entry.builder.kept_with.items())
    if not starts_anew or configuration.source.kind in ("plan", *entry.reopens):  # of a finished engine there is one
        return 1
    if shared := [key for key in SHARED if options.get(key)]:
        raise UsageError(
            f"--builds builds each time from nothing, and {entry.name}:{shared[0]}={options[shared[0]]} would hand on "
            "what an earlier build timed: leave it out"
        )
    return configuration.measure.builds


def describe_build(response: PrepareResponse, first: Path, outputs: Path) -> Build:
    """Describe one build, with the difference of its outputs from those of the first build."""
    return Build(
        artifact=response.artifact,
        build_s=response.build_s,
        size_bytes=response.size_bytes,
        fingerprint=response.fingerprint,
        max_abs_diff=measure_build_difference(first, outputs),
    )


def measure_build_difference(first: Path, outputs: Path) -> float | None:
    """Largest difference of two builds' outputs for the check inputs; None where one has none."""
    if not (first.exists() and outputs.exists()):
        return None
    try:
        drift = measure_drift(*cut_common(load_outputs(first)[0], load_outputs(outputs)[0]), {})
    except EngineBenchError:
        return None
    return max((o.max_abs_diff for o in drift.outputs if o.max_abs_diff is not None), default=None)


def cut_common(
    reference: Mapping[str, Any], candidate: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Cut both to the samples that both have: a tool that restarts for each call computes only the first few."""
    common = {name: min(len(reference[name]), len(candidate[name])) for name in reference.keys() & candidate.keys()}
    reference, candidate = ({n: a[: common.get(n)] for n, a in side.items()} for side in (reference, candidate))
    return reference, candidate
