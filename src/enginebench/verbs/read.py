"""What lies in files: `read`, `diff`, `history`, baselines, and what trtexec left."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from enginebench.core.ceilings import CEILINGS_SCHEMA, Ceilings
from enginebench.core.errors import ParseError
from enginebench.core.records import Result
from enginebench.core.store import is_result, read_record, read_result, read_schema
from enginebench.features.deliver.verb import DeliverDocument
from enginebench.features.fpga.budget import Budget
from enginebench.features.load.document import LoadDocument
from enginebench.features.sweep.document import SWEEP_SCHEMA, SweepDocument
from enginebench.features.trtexec import verb as parse
from enginebench.features.trtexec.folder import Kind, is_trtexec_folder, read_folder, sniff_kind
from enginebench.features.trtexec.log import parse_log as read_log
from enginebench.features.trtexec.records import LOG_SCHEMA, TIMES_SCHEMA, LogDocument, TimesDocument
from enginebench.features.trtexec.report import SCHEMA as TRTEXEC_SCHEMA
from enginebench.features.trtexec.report import TrtexecReport, describe_cases
from enginebench.features.tune.document import TUNE_SCHEMA, TuneDocument
from enginebench.features.tune.mixed import MIXED_SCHEMA, MixedDocument
from enginebench.features.versions.bisect import BisectDocument
from enginebench.features.versions.env import EnvironmentsDocument
from enginebench.models.precision.calibration import CALIBRATION_SCHEMA, Calibration, read_calibration
from enginebench.options import PathLike
from enginebench.report.accuracy import AccuracyDocument
from enginebench.report.bench import BenchDocument
from enginebench.report.drift import DriftDocument, SamplesDocument
from enginebench.report.history.table import HISTORY_SCHEMA, HistoryDocument
from enginebench.report.run.rows import RUN_SCHEMA, RunDocument
from enginebench.runs import baselines, folder
from enginebench.runs.bundles.record import BUNDLE_SCHEMA, Bundle
from enginebench.stats.diff import DIFF_SCHEMA, DiffDocument
from enginebench.stats.layer_records import LAYERS_SCHEMA, PROFILE_SCHEMA, LayersDocument, ProfileDocument
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

# What `read` can answer with.
Document: TypeAlias = (
    Run
    | Bench
    | Result
    | RunDocument
    | BenchDocument
    | DriftDocument
    | SamplesDocument
    | AccuracyDocument
    | StagesDocument
    | EngineProfileDocument
    | DiffDocument
    | HistoryDocument
    | Budget
    | BuildDocument
    | ExportDocument
    | InferDocument
    | CalibrateDocument
    | QuantizeDocument
    | TuneDocument
    | MixedDocument
    | Calibration
    | DoctorDocument
    | DeliverDocument
    | LoadDocument
    | EnvironmentsDocument
    | BisectDocument
    | SweepDocument
    | FleetDoctorDocument
    | Ceilings
    | Bundle
    | TrtexecReport
    | LogDocument
    | TimesDocument
    | ProfileDocument
    | LayersDocument
    | baselines.BaselineList
)

# Schema of a stored document -> its record. Rows and calibrations have readers of their own.
DOCUMENTS: dict[str, type[Struct]] = {
    RUN_SCHEMA: RunDocument,
    DIFF_SCHEMA: DiffDocument,
    HISTORY_SCHEMA: HistoryDocument,
    TRTEXEC_SCHEMA: TrtexecReport,
    LOG_SCHEMA: LogDocument,
    TIMES_SCHEMA: TimesDocument,
    PROFILE_SCHEMA: ProfileDocument,
    LAYERS_SCHEMA: LayersDocument,
    baselines.BASELINE_SCHEMA: baselines.BaselineList,
    BUNDLE_SCHEMA: Bundle,
    "enginebench.deliver/1": DeliverDocument,
    "enginebench.load/1": LoadDocument,
    TUNE_SCHEMA: TuneDocument,
    MIXED_SCHEMA: MixedDocument,
    "enginebench.env/1": EnvironmentsDocument,
    "enginebench.bisect/1": BisectDocument,
    SWEEP_SCHEMA: SweepDocument,
    "enginebench.doctor-fleet/1": FleetDoctorDocument,
    "enginebench.bench/1": BenchDocument,
    "enginebench.drift/1": DriftDocument,
    "enginebench.drift-samples/1": SamplesDocument,
    "enginebench.accuracy/2": AccuracyDocument,
    "enginebench.stages/1": StagesDocument,
    "enginebench.profile/1": EngineProfileDocument,
    "enginebench.budget/1": Budget,
    "enginebench.build/1": BuildDocument,
    "enginebench.export/1": ExportDocument,
    "enginebench.infer/1": InferDocument,
    "enginebench.calibrate/1": CalibrateDocument,
    "enginebench.quantize/1": QuantizeDocument,
    "enginebench.doctor/1": DoctorDocument,
    CEILINGS_SCHEMA: Ceilings,
}
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
        document: Document = read_record(place, DOCUMENTS[schema])  # type: ignore[assignment]
        return document
    raise ParseError(place, "$.schema", repr(schema), READABLE, "Was it written by a newer version?")


def _read_trtexec(place: Path, kind: Kind) -> LogDocument | TimesDocument | ProfileDocument | LayersDocument:
    if kind == "log":
        return read_log(place)
    if kind == "times":
        return parse.parse_times(place)
    return parse.parse_profile(place) if kind == "profile" else parse.parse_layers(place)
