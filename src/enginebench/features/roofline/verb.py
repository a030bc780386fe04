"""`roofline`: measure the peaks of this machine in fresh processes, for `run` and `profile`."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import click
from msgspec import Struct

from enginebench import door
from enginebench.core.errors import DependencyError, EngineBenchError, UsageError
from enginebench.core.names import parse_precision
from enginebench.core.peaks import Peaks
from enginebench.core.records import Machine, Precision
from enginebench.core.store import check_writable
from enginebench.core.text import count_of, stamp_utc
from enginebench.features.roofline.jobs import PeaksJob, PeaksResponse
from enginebench.features.roofline.peaks import join_best
from enginebench.features.roofline.sections import draw_peaks, list_peaks
from enginebench.features.roofline.stored_peaks import locate_peaks, store_peaks
from enginebench.measure.machine import describe_machine
from enginebench.options import Opt, PathLike, Printed, Progress, Texts, Unpack, Wait, verb
from enginebench.runs.child.isolate import child_environment, run_child
from enginebench.runs.lock import lock_devices
from enginebench.runs.progress import Reporter
from enginebench.runs.request import parse_device
from enginebench.verbs.common import open_progress, to_path

# Fresh processes for each device and number of threads, since peaks differ between processes, too.
PROCESSES = 3
# Seconds for each peak in each trial: enough for hundreds of calls, so that one of them falls into a quiet moment.
BUDGET_S, QUICK_BUDGET_S = 0.6, 0.12
QUICK_TRIALS = 3
TIMEOUT_S = 900.0


class RooflineRequest(Struct, frozen=True, kw_only=True):
    """The peaks to measure. An empty field stands for everything that the machine has."""

    precisions: tuple[Precision, ...] = ()
    threads: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()
    quick: bool = False


class RooflineOptions(Progress, total=False):
    device: Annotated[Texts | None, Opt("cpu or cuda:N, or several separated by commas. [all]")]
    precisions: Annotated[
        Texts | None, Opt("Precisions, separated by commas. [all that the device has instructions for]")
    ]
    threads: Annotated[
        int | Texts | Sequence[int] | None,
        Opt("Numbers of threads of the CPU, separated by commas. [1, 2, 4 ... physical cores]"),
    ]
    quick: Annotated[bool, Opt("One process per number of threads, and less time per peak.", False)]
    wait: Wait
    out: Annotated[PathLike | None, Opt("Folder for the JSON and the chart.", path="new folder")]


@verb(RooflineOptions)
def roofline(**options: Unpack[RooflineOptions]) -> Peaks:
    """Measure the roofline of this machine, and store it for `run` and `profile`.

    Example: enginebench roofline --quick

    Peak rates of matrix products and convolutions, bandwidths of caches and memory, launch overheads: measured, never
    from a data sheet. `run` and `profile` then report how close each configuration and layer is to its limit.

    Raises:
        UsageError: a precision, a number of threads or a device that there is not.
        DependencyError: PyTorch, through which all of it is measured, is not installed.
        DeviceBusy: a run holds a device, and `wait` is false.
    """
    return measure_and_store(options)[0]


@door.command(roofline)
def command(shown: Printed, **options: Unpack[RooflineOptions]) -> None:
    document, paths = measure_and_store(options)
    door.show(document, shown, door.tables(list_peaks))
    for path in paths:
        click.echo(str(path), err=True)
    if (out := to_path(options["out"])) is not None:
        door.draw(lambda: draw_peaks(document), out / "roofline.png")


def measure_and_store(options: RooflineOptions) -> tuple[Peaks, Sequence[Path]]:
    request = read_request(options["precisions"], options["threads"], options["device"], options["quick"])
    with open_progress(options["progress"]) as reporter:
        document = measure_peaks(request, reporter=reporter, wait=options["wait"])
    return document, store_peaks(document, to_path(options["out"]))


TextOrNumbers: TypeAlias = str | int | Iterable[str | int] | None


def read_request(
    precisions: TextOrNumbers = None, threads: TextOrNumbers = None, device: TextOrNumbers = None, quick: bool = False
) -> RooflineRequest:
    chosen = [parse_precision(text) for text in _split(precisions)]
    if any(recipe for _, recipe in chosen):
        raise UsageError(f"--precisions {precisions}: a peak has no recipe; give int8 alone")
    if wrong := [text for text in _split(threads) if not text.isdigit() or not int(text)]:
        raise UsageError(f"--threads {wrong[0]!r}: expected numbers from 1 on, separated by commas")
    return RooflineRequest(
        precisions=tuple(dict.fromkeys(precision for precision, _ in chosen)),
        threads=tuple(sorted({int(text) for text in _split(threads)})),
        devices=tuple(dict.fromkeys(parse_device(text) for text in _split(device))),
        quick=quick,
    )


def _split(values: TextOrNumbers) -> list[str]:
    pieces = [values] if isinstance(values, str | int) else values or ()
    return [text.strip() for piece in pieces for text in str(piece).split(",") if text.strip()]


def measure_peaks(request: RooflineRequest, *, reporter: Reporter, wait: bool = True) -> Peaks:
    machine = describe_machine()
    check_writable(locate_peaks(machine))
    jobs, processes = list(plan_jobs(request, machine)), 1 if request.quick else PROCESSES
    with lock_devices([job.device for job in jobs], wait=wait, on_wait=reporter.say):
        measured = [_measure(job, processes, reporter) for job in jobs]
    peaks = tuple(peak for one in measured for peak in one.peaks)
    notes = tuple(dict.fromkeys(note for one in measured for note in one.notes))
    if not peaks:
        raise UsageError("nothing could be measured: " + "; ".join(notes))
    now, quick = stamp_utc(), request.quick
    return Peaks(machine=machine, peaks=peaks, measured_utc=now, quick=quick, processes=processes, notes=notes)


def plan_jobs(request: RooflineRequest, machine: Machine) -> Iterator[PeaksJob]:
    gpus = [f"cuda:{gpu.index}" for gpu in machine.gpus]
    devices = request.devices or ("cpu", *gpus)
    if missing := [device for device in devices if device not in ("cpu", *gpus)]:
        raise UsageError(f"--device {', '.join(missing)}: not on this machine; there is {', '.join(('cpu', *gpus))}")
    for device in devices:
        for threads in choose_threads(request, machine) if device == "cpu" else (1,):
            yield PeaksJob(
                device=device,
                precisions=request.precisions,
                threads=threads,
                budget_s=QUICK_BUDGET_S if request.quick else BUDGET_S,
                trials=QUICK_TRIALS if request.quick else 1,
                quick=request.quick,
            )


def choose_threads(request: RooflineRequest, machine: Machine) -> tuple[int, ...]:
    """Return the requested thread counts, else 1, 2, 4 and so on up to the default; if quick, 1 and the default."""
    most = machine.default_threads
    if over := [count for count in request.threads if count > len(machine.cpus_allowed)]:
        raise UsageError(f"--threads {over[0]}: this process may use {len(machine.cpus_allowed)} CPUs")
    if request.threads:
        return request.threads
    if request.quick:
        return tuple(sorted({1, most}))
    doubled = [1 << i for i in range(1, most.bit_length()) if 1 << i < most]
    return (1, *doubled, most) if most > 1 else (1,)


def _measure(job: PeaksJob, processes: int, reporter: Reporter) -> PeaksResponse:
    """Join the peaks measured by several fresh processes.

    A GPU that cannot be measured is left out, and so is what a failed process measured; a note gives the reason.
    """
    responses: list[PeaksResponse] = []
    lost: tuple[str, ...] = ()
    try:
        for trial in range(processes):
            reporter.step(f"{job.device}, {count_of(job.threads, 'threads')}, trial {trial + 1} of {processes}")
            environment = child_environment(job.threads, trial)
            responses.append(run_child(job, timeout_s=TIMEOUT_S, variables=environment, on_note=reporter.step))
    except (UsageError, DependencyError) as error:
        if job.device == "cpu":
            raise
        return PeaksResponse(peaks=(), notes=(f"{job.device} was not measured: {error}",))
    except EngineBenchError as error:
        lost = (f"{job.device} with {job.threads} threads: {error}",)
    return PeaksResponse(
        peaks=join_best(one for response in responses for one in response.peaks),
        notes=lost or tuple(note for response in responses for note in response.notes),
    )
