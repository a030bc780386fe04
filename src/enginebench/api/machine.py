"""`doctor`, `roofline` and the built-in models: what there is, and what it can do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from enginebench.api import checks as given
from enginebench.api.checks import PathLike
from enginebench.api.progress import open_progress
from enginebench.core.ceilings import Ceilings
from enginebench.models.zoo import BUILTIN, ModelCard
from enginebench.workflow.ceilings import store_ceilings
from enginebench.workflow.verbs.doctor import DoctorDocument, FleetDoctorDocument, examine, examine_fleet
from enginebench.workflow.verbs.roofline import measure_ceilings, read_request


def doctor(
    *, env: str | None = None, on: str | None = None, progress: bool | None = None
) -> DoctorDocument | FleetDoctorDocument:
    """The machine and every engine: its version and devices, or what is missing and what adds it. Never fails.

    Args:
        env: the name of an environment to ask in place of this one.
        on: auto or ray://HOST:PORT, to ask every node of a Ray cluster in place of this machine.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.
    """
    if on is not None:
        return examine_fleet(on)
    with open_progress(progress) as reporter:
        return examine(lambda name: reporter.step(f"checking {name}"), env)


def roofline(
    *,
    precisions: str | Iterable[str] = (),
    threads: int | Iterable[int] = (),
    device: str | Iterable[str] = (),
    quick: bool = False,
    wait: bool = True,
    out: PathLike | None = None,
    progress: bool | None = None,
) -> Ceilings:
    """What this machine can do at best, measured in fresh processes; stored, so that `run` and `profile` find it.

    Args:
        precisions: fp32, tf32, fp16, bf16, int8 or fp8; by default all that the device has instructions for.
        threads: numbers of threads of the CPU; by default 1, 2, 4 and so on up to the physical cores.
        device: cpu, cuda:N, or several; by default all.
        quick: one process for each number of threads, and less time for each ceiling.
        wait: if another run holds the device, wait for it; else raise DeviceBusy.
        out: a folder for `roofline.json`, too.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        UsageError: a precision, a number of threads or a device that there is not.
        DependencyError: PyTorch, through which all of it is measured, is not installed.
    """
    counts = (threads,) if isinstance(threads, int) else threads
    names, places = (",".join(given.list_texts(texts)) for texts in (precisions, device))
    request = read_request(names, ",".join(map(str, counts)), places, quick)
    with open_progress(progress) as reporter:
        document = measure_ceilings(request, reporter=reporter, wait=wait)
    store_ceilings(document, Path(out) if out is not None else None)
    return document


def list_models() -> tuple[ModelCard, ...]:
    """The built-in models: input, parameters, multiply-adds, source of the weights."""
    return tuple(BUILTIN.values())
