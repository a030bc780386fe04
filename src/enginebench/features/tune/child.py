"""The child's part of precision by layer: the harm of each group of nodes, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enginebench.core.errors import UsageError
from enginebench.features.tune.groups import GroupHarm, Harm, NodeGroup
from enginebench.features.tune.harm import measure_harm
from enginebench.features.tune.jobs import SensitivityAnswer, SensitivityJob
from enginebench.models.samples import read_samples
from enginebench.runs.child.jobs import NoteCall

if TYPE_CHECKING:
    from onnx import ModelProto

    from enginebench.models.precision.calibration_data import CalibrationData

# What is told on the way: after so many groups.
TOLD_EVERY = 20


def measure_sensitivity(job: SensitivityJob, note: NoteCall) -> SensitivityAnswer:
    """The harm of each group, those with the most multiply-accumulates first: theirs is the time that can be saved."""
    from enginebench.features.tune.sensitivity import find_groups, map_homes, quantize_only
    from enginebench.models.precision.graph import load_whole_graph, prepare_graph
    from enginebench.models.precision.trying import answer

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

    def try_graph(model: ModelProto) -> Harm:
        return measure_harm(reference, answer(model, feeds, job.threads, libraries), logits=job.logits)

    def try_groups(chosen: Sequence[NodeGroup]) -> Harm:
        return try_graph(quantize_only(prepared, quantized, [name for group in chosen for name in group.nodes]))

    together = try_graph(quantized)
    found: dict[str, Harm] = {}
    for i, group in enumerate(sorted(groups, key=lambda group: -group.macs)):
        if time.monotonic() - start_s > job.time_limit_s:
            note(f"time ran out after {i} of {len(groups)} groups")
            break
        if i % TOLD_EVERY == 0:
            note(f"sensitivity: group {i + 1} of {len(groups)}")
        found[group.name] = try_groups([group])
    return SensitivityAnswer(
        groups=tuple(GroupHarm(group=group, harm=found.get(group.name)) for group in groups),
        together=together,
        first=find_first(groups, try_groups, job.allowed_noise),
        homes=map_homes(prepared, groups),
        samples=data.n,
        seconds=time.monotonic() - start_s,
    )


def find_first(
    groups: Sequence[NodeGroup], try_groups: Callable[[Sequence[NodeGroup]], Harm], allowed_noise: float | None
) -> str | None:
    """The group with which the answers break when groups are quantized from the input on; None if they do not.

    By halves, as more quantized groups are taken to be no less noisy: seven tries for a hundred groups.
    """
    if allowed_noise is None or not groups or try_groups(groups).noise <= allowed_noise:
        return None
    fine, broken = 0, len(groups)
    while broken - fine > 1:
        middle = (fine + broken) // 2
        if try_groups(groups[:middle]).noise <= allowed_noise:
            fine = middle
        else:
            broken = middle
    return groups[broken - 1].name


def _open_samples(job: SensitivityJob) -> CalibrationData:
    """The first of the entries that the ranges were taken from: what is held out stays so."""
    from enginebench.models.precision.calibration_data import open_data, use_samples

    if job.inputs is not None:
        return use_samples(read_samples(job.inputs, job.samples), job.artifact.inputs)
    given: dict[str, Any] = {"model": job.model, "inputs": job.artifact.inputs, "n": job.samples, "seed": job.seed}
    return open_data(job.data, **given, input_size=job.input_size)
