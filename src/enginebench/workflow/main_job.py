"""The main job, as a story: describe the machine, make the sources, plan the rows, measure them, keep everything."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from enginebench.backends.registry import find_installed, takes
from enginebench.core.records import Result
from enginebench.measure.machine import describe_machine
from enginebench.workflow.campaign import Campaign, Reporter
from enginebench.workflow.folder import RunFolder, RunRecord, RunRequest
from enginebench.workflow.lock import lock_devices
from enginebench.workflow.plan import list_devices, plan_rows
from enginebench.workflow.sources import choose_labelled, gather_sources


def run_model(
    request: RunRequest,
    root: Path,
    *,
    reporter: Reporter,
    resume: bool = False,
    wait: bool = True,
    command: tuple[str, ...] = (),
    on_results: Callable[[RunRecord, list[Result]], None] = lambda record, results: None,
) -> tuple[RunRecord, list[Result]]:
    """The run's record and every row of it, all of it stored under `root`.

    Args:
        request: what to run. With `resume` the stored request counts instead.
        root: the run's folder.
        reporter: where progress goes.
        resume: continue the run that `root` holds.
        wait: wait for another run on one of the devices, or refuse.
        command: the command line, stored for whoever wants to repeat it.
        on_results: called with what there is when the run ends in any way, also by an interrupt.

    Raises:
        DeviceBusy: another run holds a device of a row, and `wait` is false.
        EngineBenchError: the model could not be exported, the folder not be used, ...
    """
    folder = RunFolder(root)
    record = folder.read_record() if resume else _begin(folder, request, command)
    with lock_devices(list_devices(record.request), wait=wait, on_wait=reporter.say):
        if not record.sources:
            record = _add_sources(folder, record, reporter)
        return _measure(folder, record, reporter, resume, on_results)


def _begin(folder: RunFolder, request: RunRequest, command: tuple[str, ...]) -> RunRecord:
    """A new run: its folder with `run.json` first, so that whatever fails later can be continued."""
    record = RunRecord(
        request=request,
        machine=describe_machine(),
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        rows=(),
        command=command,
    )
    folder.create(record)
    return record


def _add_sources(folder: RunFolder, record: RunRecord, reporter: Reporter) -> RunRecord:
    """The record with its sources made and its rows planned."""
    found = gather_sources(record.request, folder.artefacts, reporter)
    rows = plan_rows(record.request, found.artifacts, probe=find_installed, takes=takes, problems=found.problems)
    stored = tuple(folder.relative(a) for a in found.artifacts)
    record = replace(record, rows=tuple(row.id for row in rows), sources=stored, problems=found.problems)
    folder.write_record(record)
    return record


def _measure(
    folder: RunFolder,
    record: RunRecord,
    reporter: Reporter,
    resume: bool,
    on_results: Callable[[RunRecord, list[Result]], None],
) -> tuple[RunRecord, list[Result]]:
    request = record.request
    sources = tuple(folder.absolute(a) for a in record.sources)
    rows = plan_rows(request, sources, probe=find_installed, takes=takes, problems=record.problems)
    campaign = Campaign(
        folder,
        rows,
        record.machine,
        timeout_s=request.timeout_s,
        reporter=reporter,
        labelled=choose_labelled(request),
    )
    if resume:
        campaign.restore()
    try:
        campaign.run()
    finally:
        on_results(record, list(campaign.results.values()))
    return record, list(campaign.results.values())
