"""The child's part of precision by layer: the harm of each group of nodes, within a time limit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enginebench.core.errors import UsageError
from enginebench.features.tune.groups import GroupHarm
from enginebench.features.tune.harm import measure_harm
from enginebench.features.tune.jobs import SensitivityAnswer, SensitivityJob
from enginebench.models.samples import read_samples
from enginebench.runs.child.jobs import NoteCall

if TYPE_CHECKING:
    from enginebench.models.precision.calibration_data import CalibrationData

# What is told on the way: after so many groups.
TOLD_EVERY = 20


def measure_sensitivity(job: SensitivityJob, note: NoteCall) -> SensitivityAnswer:
    """The harm of each group, those with the most multiply-accumulates first: theirs is the time that can be saved."""
    from enginebench.features.tune.sensitivity import find_groups, quantize_only
    from enginebench.models.precision.graph import answer, load_whole_graph, prepare_graph

    start_s = time.monotonic()
    libraries = job.artifact.operator_libraries
    given = load_whole_graph(Path(job.artifact.path))
    prepared, quantized = prepare_graph(given, libraries), load_whole_graph(Path(job.quantized.path))
    data = _open_samples(job)
    if data.apart:
        raise UsageError("its samples have no common batch axis, and are not compared group by group")
    feeds = data.read(0, data.n)
    groups = find_groups(given, prepared, quantized)
    reference = answer(prepared, feeds, job.threads, libraries)

    found: dict[str, float] = {}
    for i, group in enumerate(sorted(groups, key=lambda group: -group.macs)):
        if time.monotonic() - start_s > job.time_limit_s:
            note(f"time ran out after {i} of {len(groups)} groups")
            break
        if i % TOLD_EVERY == 0:
            note(f"sensitivity: group {i + 1} of {len(groups)}")
        alone = quantize_only(prepared, quantized, group.nodes)
        found[group.name] = measure_harm(reference, answer(alone, feeds, job.threads, libraries))
    return SensitivityAnswer(
        groups=tuple(GroupHarm(group=group, noise=found.get(group.name)) for group in groups),
        samples=data.n,
        seconds=time.monotonic() - start_s,
    )


def _open_samples(job: SensitivityJob) -> CalibrationData:
    """The first of the entries that the ranges were taken from: what is held out stays so."""
    from enginebench.models.precision.calibration_data import open_data, use_samples

    if job.inputs is not None:
        return use_samples(read_samples(job.inputs, job.samples), job.artifact.inputs)
    given: dict[str, Any] = {"model": job.model, "inputs": job.artifact.inputs, "n": job.samples, "seed": job.seed}
    return open_data(job.data, **given, input_size=job.input_size)
