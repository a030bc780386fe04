"""Read files and folders: `read`, `diff`, `history`, baselines, and files of trtexec."""

from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import fields

from enginebench.core.errors import ParseError, UsageError
from enginebench.core.features import find, find_hooks
from enginebench.core.hooks import FileReader
from enginebench.core.peaks import Peaks
from enginebench.core.store import is_result, read_record, read_result, read_schema
from enginebench.models.precision.calibration import CALIBRATION_SCHEMA, read_calibration
from enginebench.options import PathLike
from enginebench.report.bench import BenchDocument
from enginebench.report.drift import DriftDocument, SamplesDocument
from enginebench.report.history import HistoryDocument
from enginebench.report.run.rows import RunDocument
from enginebench.report.scores import AccuracyDocument
from enginebench.runs import baselines, folder
from enginebench.runs.bundles import Bundle
from enginebench.stats.diff import DiffDocument
from enginebench.stats.engine_profile import EngineProfileDocument
from enginebench.stats.layer_records import LayersDocument, ProfileDocument
from enginebench.stats.stages import StagesDocument
from enginebench.verbs.benches import Bench
from enginebench.verbs.build import BuildDocument
from enginebench.verbs.calibrate import CalibrateDocument
from enginebench.verbs.doctor import DoctorDocument, FleetDoctorDocument
from enginebench.verbs.export import ExportDocument
from enginebench.verbs.infer import InferDocument
from enginebench.verbs.models import ModelsDocument
from enginebench.verbs.quantize import QuantizeDocument
from enginebench.verbs.runs import Run

# The result of `read`: a record of the kernel or of a feature.
Document: TypeAlias = Run | Bench | Struct

RECORDS: tuple[type[Struct], ...] = (
    *(RunDocument, DiffDocument, HistoryDocument, ProfileDocument, LayersDocument, baselines.BaselineList, Bundle),
    *(FleetDoctorDocument, BenchDocument, DriftDocument, SamplesDocument, AccuracyDocument, StagesDocument),
    *(EngineProfileDocument, BuildDocument, ExportDocument, InferDocument, CalibrateDocument, QuantizeDocument),
    *(DoctorDocument, ModelsDocument, Peaks),
)
# Schema of a stored document of the kernel -> its record. Results and calibrations have readers of their own.
DOCUMENTS = {field.default: kind for kind in RECORDS for field in fields(kind) if field.name == "schema"}
READABLE = "a run, a stored result, a document of enginebench, or a file of trtexec"


def read(path: PathLike) -> Document:
    """Read what is stored at a path; nothing in it is executed, and no model is opened.

    Args:
        path: the folder of a run (a `Run`) or of a bench (a `Bench`); the file of a configuration (a `Result`); a
            folder of `drift`; a bundle (a `Bundle`); a JSON document that a verb printed; a file or a folder of
            trtexec.

    Raises:
        ParseError: it is none of these, or damaged; names file and field.
        UsageError: the path is an empty text.
    """
    if path == "":  # as a Path it would be the current folder
        raise UsageError("path: the text is empty; expected a path")
    target = Path(path)
    return _read_folder(target) if target.is_dir() else _read_file(target)


def _read_folder(path: Path) -> Document:
    if folder.holds_run(path):
        record, results = folder.read_results(path)
        return Bench(path, tuple(results)) if record.verb == "bench" else Run(path, record, tuple(results))
    for name in ("bundle.json", "output_diff.json"):
        if (path / name).is_file():
            return _read_file(path / name)
    if (document := _ask_features(path)) is not None:
        return document
    raise ParseError(path, "", "a folder with none of their files", READABLE)


def _read_file(path: Path) -> Document:
    if path.is_file() and (foreign := _ask_features(path)) is not None:
        return foreign
    schema = read_schema(path)
    if is_result(schema):
        return read_result(path)
    if schema == folder.RUN_SCHEMA:
        return _read_folder(path.parent)
    if schema == CALIBRATION_SCHEMA:
        return read_calibration(path)
    record = DOCUMENTS.get(schema) or find("documents", schema)
    if record is not None:
        document: Document = read_record(path, record)
        return document
    raise ParseError(path, "$.schema", repr(schema), READABLE, "Was it written by a newer version?")


def _ask_features(path: Path) -> Struct | None:
    """Return the document of the first feature that reads such a file or folder; None if none does."""
    return next((document for read in find_hooks(FileReader) if (document := read(path)) is not None), None)
