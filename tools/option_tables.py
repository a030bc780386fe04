"""The tables of docs/cli.md, written anew: options from the declarations of the verbs, JSON fields from the records.

    python tools/option_tables.py

Those of docs/api.md as text (`write_arguments`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import click
import msgspec

import enginebench
from enginebench import options
from enginebench.core.ceilings import Ceiling, Ceilings
from enginebench.core.records import Availability, Capacity, Caveat, Estimate, Score
from enginebench.door import VERBS
from enginebench.features.deliver.verb import DeliverDocument
from enginebench.features.fpga.budget import Budget
from enginebench.features.fpga.synth import Synthesis
from enginebench.features.fpga.verb import SimulateDocument
from enginebench.features.load.document import LoadDocument, LoadRow
from enginebench.features.sweep.document import (
    Environment,
    FailedCell,
    Interference,
    SweepCell,
    SweepDocument,
    SweepRow,
    Tuned,
)
from enginebench.features.sweep.records import KindPlan, SweepPlan
from enginebench.features.trtexec.records import Joint, LogDocument, LogRun, Stat, TimesDocument
from enginebench.features.tune.document import Candidate, Dropped, Finalist, FrontierPoint, TuneDocument, TuneRef
from enginebench.features.versions.bisect import BisectDocument
from enginebench.features.versions.env import EnvironmentsDocument
from enginebench.models.zoo import ModelCard
from enginebench.options import Opt
from enginebench.report.bench import BenchDocument
from enginebench.report.drift import DriftDocument
from enginebench.report.history import HistoryDocument
from enginebench.report.run.rows import Row, RunDocument
from enginebench.report.scores import AccuracyDocument
from enginebench.runs.baselines import BaselineList
from enginebench.stats.builds import BuildEffect
from enginebench.stats.capacity import CapacityVerdict
from enginebench.stats.compare import Comparison
from enginebench.stats.diff import Change, DiffDocument, DiffRow
from enginebench.stats.headline import Headline, Rejected
from enginebench.stats.layer_records import EngineLayer, LayersDocument, ProfiledLayer, ProfileDocument
from enginebench.stats.profile import EngineLayerTime, EngineProfileDocument
from enginebench.stats.queueing import LoadPoint
from enginebench.stats.ranking import Ref
from enginebench.stats.stages import StagesDocument
from enginebench.verbs.build import BuildDocument
from enginebench.verbs.calibrate import CalibrateDocument
from enginebench.verbs.doctor import DoctorDocument, FleetDoctorDocument, NodeAnswer
from enginebench.verbs.export import ExportDocument
from enginebench.verbs.infer import InferDocument
from enginebench.verbs.models import ModelsDocument
from enginebench.verbs.quantize import QuantizeDocument

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
COMMON = [option.name for option in options.list_options(options.Shared).values() if not option.program] + ["as_json"]
TABLE = re.compile(r"^\| (?:option|document) \|.*\n(?:\|.*\|\n?|\n(?=\|))+", re.MULTILINE)

# What `--json` prints: as the page names it -> its record, whose fields the page lists.
DOCUMENTS: dict[str, type[msgspec.Struct]] = {
    "`run`, `report`": RunDocument,
    "`bench`": BenchDocument,
    "`deliver`": DeliverDocument,
    "`load`": LoadDocument,
    "`tune`": TuneDocument,
    "`build`": BuildDocument,
    "`export`": ExportDocument,
    "`drift`": DriftDocument,
    "`accuracy`": AccuracyDocument,
    "`infer`": InferDocument,
    "`stages`": StagesDocument,
    "`profile`": EngineProfileDocument,
    "`budget`": Budget,
    "`fpga simulate`": SimulateDocument,
    "`fpga synth`": Synthesis,
    "`calibrate`": CalibrateDocument,
    "`quantize`": QuantizeDocument,
    "`doctor`": DoctorDocument,
    "`doctor --on`": FleetDoctorDocument,
    "`sweep`": SweepDocument,
    "`sweep --dry-run`": SweepPlan,
    "`models`": ModelsDocument,
    "`roofline`": Ceilings,
    "`env make`": EnvironmentsDocument,
    "`bisect`": BisectDocument,
    "`diff`": DiffDocument,
    "`baseline list`": BaselineList,
    "`history`": HistoryDocument,
    "`parse log`": LogDocument,
    "`parse times`": TimesDocument,
    "`parse profile`": ProfileDocument,
    "`parse layers`": LayersDocument,
}
# What those hold.
PARTS: dict[str, type[msgspec.Struct]] = {
    "row": Row,
    "estimate": Estimate,
    "score": Score,
    "ref (`fastest`, `recommended`)": Ref,
    "headline of a batch and shape": Headline,
    "`rejected` of a headline": Rejected,
    "comparison": Comparison,
    "row of `diff`": DiffRow,
    "`change` of a row of `diff`": Change,
    "builds of a row": BuildEffect,
    "engine of `doctor`": Availability,
    "ceiling of `roofline`": Ceiling,
    "model of `models`": ModelCard,
    "run of `parse log`": LogRun,
    "`joint` of `parse log`": Joint,
    "statistic of `parse`": Stat,
    "layer of `profile`": EngineLayerTime,
    "layer of `parse profile`": ProfiledLayer,
    "layer of `parse layers`": EngineLayer,
    "point of `load`": LoadPoint,
    "row of `load`": LoadRow,
    "capacity": Capacity,
    "verdict of `load`": CapacityVerdict,
    "ref of `tune` (`winner`, `default`, `challenger`)": TuneRef,
    "dropped of `tune`": Dropped,
    "row of the final of `tune`": Finalist,
    "candidate of `tune`": Candidate,
    "point of the frontier of `tune`": FrontierPoint,
    "caveat": Caveat,
    "node of `doctor --on`": NodeAnswer,
    "cell of `sweep`": SweepCell,
    "row of `sweep`": SweepRow,
    "failed cell of `sweep`": FailedCell,
    "machine of `sweep`": Environment,
    "interference of `sweep`": Interference,
    "tuned model of `sweep`": Tuned,
    "kind of `sweep --dry-run`": KindPlan,
}


def list_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words: `run`, `parse log`, ..."""
    for verb, known in VERBS.items():
        command: click.Command = import_module(known.module).command
        inner = command.commands if isinstance(command, click.Group) else {"": command}
        yield from ((f"{verb} {name}".strip(), found) for name, found in inner.items())


def format_table(declared: Iterable[Opt]) -> str:
    """The table of these options: names, default, meaning."""
    rows = [
        f"| {name_option(option)} | {' | '.join(explain(option))} |\n".replace("|  |", "| |") for option in declared
    ]
    return "".join(["| option | default | meaning |\n", "|---|---|---|\n", *rows])


def write_arguments() -> str:
    """For each function of the package that has options a table of them, for the reference of the Python API."""
    parts = []
    for name in sorted(enginebench.__all__):
        declared: dict[str, Opt] = getattr(getattr(enginebench, name), "options", {})
        rows = [f"| `{option.name}` | {' | '.join(explain(option))} |\n" for option in declared.values()]
        if rows:
            parts.append(f"### Options of {name}\n\n| option | default | meaning |\n|---|---|---|\n{''.join(rows)}\n")
    return "".join(parts)


def name_option(option: Opt) -> str:
    names = option.names or f"--{option.name.replace('_', '-')}"
    return " ".join(f"`{name}`" for name in names.split("/"))


def explain(option: Opt) -> tuple[str, str]:
    """The default, and what the option means."""
    text, default = re.findall(r"(.*?)(?: \[(.*)\])?$", option.help)[0]
    if option.default not in (None, (), "") and not isinstance(option.default, bool):
        default = f"{option.default:g}" if isinstance(option.default, float) else str(option.default)
    meaning = ". ".join(filter(None, (text if text.endswith("...") else text.removesuffix("."), option.more)))
    return default or "", (f"`{option.metavar}`: {meaning}" if option.metavar else meaning).replace("|", "\\|")


def write_tables(page: str) -> str:
    """The page with the tables of its sections as the verbs are declared."""
    shared = {**options.list_options(options.Shared), **options.list_options(options.Printed)}
    tables = {"Common options": format_table(shared[name] for name in COMMON)}
    for words, command in list_commands():
        declared: dict[str, Opt] | None = getattr(command, "declared", None)
        if declared is not None:
            common = COMMON if COMMON[0] in declared and COMMON[1] in declared else []
            tables[f"`{words}`"] = format_table(o for o in declared.values() if o.name not in common)
    tables["JSON documents"] = list_fields()
    head, *sections = re.split(r"^## ", page, flags=re.MULTILINE)
    return "## ".join([head, *(replace_table(section, tables) for section in sections)])


def list_fields() -> str:
    """The fields of each document, then those of its parts."""
    documents = [f"| {name} | {_read_schema(kind)} | {_name_fields(kind)} |\n" for name, kind in DOCUMENTS.items()]
    parts = [f"| {name} | {_name_fields(kind)} |\n" for name, kind in PARTS.items()]
    return "".join(
        ["| document | schema | fields |\n|---|---|---|\n", *documents, "\n| part | fields |\n|---|---|\n", *parts]
    )


def _read_schema(kind: type[msgspec.Struct]) -> str:
    return next(str(field.default) for field in msgspec.structs.fields(kind) if field.name == "schema")


def _name_fields(kind: type[msgspec.Struct]) -> str:
    return " ".join(f"`{name}`" for name in kind.__struct_fields__)


def replace_table(section: str, tables: dict[str, str]) -> str:
    written = tables.get(section.partition("\n")[0])
    return section if written is None else TABLE.sub(lambda _: written, section, count=1)


if __name__ == "__main__":
    page = PAGE.read_text("utf-8")
    PAGE.write_text(write_tables(page), "utf-8")
    if missing := [words for words, _ in list_commands() if f"\n## `{words}`\n" not in page]:
        sys.exit(
            f"docs/cli.md has no section of {', '.join(missing)}: write heading and usage line, and run this again"
        )
