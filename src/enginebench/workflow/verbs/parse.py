"""The verb `parse`: files of trtexec that belong together, read together."""

from __future__ import annotations

from pathlib import Path

from enginebench.analyze.trtexec import log as logs
from enginebench.analyze.trtexec import plan_layers, times
from enginebench.analyze.trtexec import profile as profiles
from enginebench.analyze.trtexec.folder import find_profile, read_compute_ms
from enginebench.analyze.trtexec.layer_diff import compare_layers
from enginebench.analyze.trtexec.records import LayersDocument, ProfileDocument, TimesDocument


def parse_times(
    file: Path,
    *,
    model: str | None = None,
    precision: str | None = None,
    batch: int | None = None,
    warmup_ms: float | None = None,
    log: Path | None = None,
) -> TimesDocument:
    """A timing file: throughput and latency with intervals, without the warm-up.

    Args:
        file: of `--exportTimes`.
        model: recorded in the document.
        precision: recorded in the document.
        batch: images in one query; gives images/s.
        warmup_ms: queries that begin earlier are warm-up; None: as the file, or the log, tells.
        log: of the same run: tells what is warm-up.

    Raises:
        ParseError: a file cannot be read; names path and position.
    """
    run = logs.parse_log(log).choose_run() if log else None
    return times.parse_times(file, model=model, precision=precision, batch=batch, warmup_ms=warmup_ms, log=run)


def parse_profile(
    file: Path,
    *,
    model: str | None = None,
    precision: str | None = None,
    batch: int | None = None,
    against: Path | None = None,
) -> ProfileDocument:
    """Time by layer, slowest first; with `against` also what no layer explains.

    Args:
        file: of `--exportProfile`.
        model: recorded in the document.
        precision: recorded in the document.
        batch: images in one query.
        against: timing file or log of the engine without the profiler.

    Raises:
        ParseError: a file cannot be read; names path and position.
    """
    whole_ms = read_compute_ms(against) if against else None
    return profiles.parse_profile(file, model=model, precision=precision, batch=batch, end_to_end_ms=whole_ms)


def parse_layers(
    file: Path,
    *,
    model: str | None = None,
    precision: str | None = None,
    batch: int | None = None,
    profile: Path | None = None,
    against: Path | None = None,
    against_profile: Path | None = None,
) -> LayersDocument:
    """Types, precisions and ONNX operators of an engine's layers; with `against` how two engines differ.

    Args:
        file: of `--exportLayerInfo`.
        model: recorded in the document.
        precision: recorded in the document.
        batch: images in one query.
        profile: of the same engine: shares are then of time.
        against: layers of another engine of the same model, the base.
        against_profile: of that engine; None: the one beside it, where `profile` is given.

    Raises:
        ParseError: a file cannot be read; names path and position.
    """
    document = plan_layers.parse_layers(
        file, profile=_read_profile(profile), model=model, precision=precision, batch=batch
    )
    if against is None:
        return document
    other = against_profile or (find_profile(against) if profile else None)
    return compare_layers(plan_layers.parse_layers(against, profile=_read_profile(other)), document)


def _read_profile(path: Path | None) -> ProfileDocument | None:
    return profiles.parse_profile(path) if path else None
