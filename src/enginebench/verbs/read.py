"""What lies in files: `read`, `diff`, `history`, baselines, and what trtexec left."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import fields

from enginebench.core.ceilings import Ceilings
from enginebench.core.errors import ParseError
from enginebench.core.store import is_result, read_record, read_result, read_schema
from enginebench.features.deliver.verb import DeliverDocument
from enginebench.features.fpga.budget import Budget
from enginebench.features.load.document import LoadDocument
from enginebench.features.sweep.document import SweepDocument
from enginebench.features.trtexec import verb as parse
from enginebench.features.trtexec.folder import Kind, is_trtexec_folder, read_folder, sniff_kind
from enginebench.features.trtexec.log import parse_log as read_log
from enginebench.features.trtexec.records import LogDocument, TimesDocument
from enginebench.features.trtexec.report import TrtexecReport, describe_cases
from enginebench.features.tune.document import TuneDocument
from enginebench.features.tune.mixed import MixedDocument
from enginebench.features.versions.bisect import BisectDocument
from enginebench.features.versions.env import EnvironmentsDocument
from enginebench.models.precision.calibration import CALIBRATION_SCHEMA, read_calibration
from enginebench.options import PathLike
from enginebench.report.accuracy import AccuracyDocument
from enginebench.report.bench import BenchDocument
from enginebench.report.drift import DriftDocument, SamplesDocument
from enginebench.report.history.table import HistoryDocument
from enginebench.report.run.rows import RunDocument
from enginebench.runs import baselines, folder
from enginebench.runs.bundles.record import Bundle
from enginebench.stats.diff import DiffDocument
from enginebench.stats.layer_records import LayersDocument, ProfileDocument
from enginebench.stats.layers import EngineProfileDocument
from enginebench.stats.stages import StagesDocument
from enginebench.verbs.benches import Bench
from enginebench.verbs.build import BuildDocument
from enginebench.verbs.calibrate import CalibrateDocument
from enginebench.verbs.doctor import DoctorDocument, FleetDoctorDocument
from enginebench.verbs.export import ExportDocument
from enginebench.verbs.infer import InferDocument
from enginebench.verbs.quantize import QuantizeDocument
from enginebench.verbs.runs import Run

# What `read` answers with: of all documents the record.
Document: TypeAlias = Run | Bench | Struct

RECORDS: tuple[type[Struct], ...] = (
    *(RunDocument, DiffDocument, HistoryDocument, TrtexecReport, LogDocument, TimesDocument, ProfileDocument),
    *(LayersDocument, baselines.BaselineList, Bundle, DeliverDocument, LoadDocument, TuneDocument, MixedDocument),
    *(EnvironmentsDocument, BisectDocument, SweepDocument, FleetDoctorDocument, BenchDocument, DriftDocument),
    *(SamplesDocument, AccuracyDocument, StagesDocument, EngineProfileDocument, Budget, BuildDocument, ExportDocument),
    *(InferDocument, CalibrateDocument, QuantizeDocument, DoctorDocument, Ceilings),
)
# Schema of a stored document -> its record. Rows and calibrations have readers of their own.
DOCUMENTS = {field.default: kind for kind in RECORDS for field in fields(kind) if field.name == "schema"}
READABLE = "a run, a stored result, a document of enginebench, or a file of trtexec"


def read(path: PathLike) -> Document:
    """What lies at a path: nothing in it is executed, and no model is opened.

    Args:
        path: the folder of a run (a `Run`) or of a bench (a `Bench`); the file of a row (a `Result`); a folder of
            `drift`; a bundle (a `Bundle`); a JSON document that a verb printed; a file or a folder of trtexec.

    Raises:
        ParseError: it is none of these, or damaged; names file and field.
    """
    place = Path(path)
    return _read_folder(place) if place.is_dir() else _read_file(place)


def _read_folder(place: Path) -> Document:
    if folder.holds_run(place):
        record, results = folder.read_results(place)
        return Bench(place, tuple(results)) if record.verb == "bench" else Run(place, record, tuple(results))
    for name in ("bundle.json", "output_diff.json"):
        if (place / name).is_file():
            return _read_file(place / name)
    if is_trtexec_folder(place):
        return describe_cases(read_folder(place))
    raise ParseError(place, "", "a folder with none of their files", READABLE)


def _read_file(place: Path) -> Document:
    kind = sniff_kind(place) if place.is_file() else None
    if kind in ("log", "times", "profile", "layers"):
        return _read_trtexec(place, kind)
    schema = read_schema(place)
    if is_result(schema):
        return read_result(place)
    if schema == folder.RUN_SCHEMA:
        return _read_folder(place.parent)
    if schema == CALIBRATION_SCHEMA:
        return read_calibration(place)
    if schema in DOCUMENTS:
        return read_record(place, DOCUMENTS[schema])
    raise ParseError(place, "$.schema", repr(schema), READABLE, "Was it written by a newer version?")


def _read_trtexec(place: Path, kind: Kind) -> LogDocument | TimesDocument | ProfileDocument | LayersDocument:
    if kind == "log":
        return read_log(place)
    if kind == "times":
        return parse.parse_times(place)
    return parse.parse_profile(place) if kind == "profile" else parse.parse_layers(place)
