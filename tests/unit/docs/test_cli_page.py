"""`docs/cli.md` against the program: verbs, arguments, options, defaults, exit codes, JSON fields."""

from __future__ import annotations

import re
import sys

import click
import msgspec
import pytest

from enginebench.core import errors
from enginebench.core.ceilings import Ceiling, Ceilings
from enginebench.core.records import Availability, Capacity, Caveat, Estimate, Score
from enginebench.door import INTERRUPTED
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
from enginebench.features.sweep.verb import KindPlan, SweepPlan
from enginebench.features.trtexec.records import Joint, LogDocument, LogRun, Stat, TimesDocument
from enginebench.features.tune.document import Candidate, Dropped, Finalist, FrontierPoint, TuneDocument, TuneRef
from enginebench.features.versions.bisect import BisectDocument
from enginebench.features.versions.env import EnvironmentsDocument
from enginebench.models.zoo import ModelCard
from enginebench.report.accuracy import AccuracyDocument
from enginebench.report.bench import BenchDocument
from enginebench.report.drift import DriftDocument
from enginebench.report.history.table import HistoryDocument
from enginebench.report.run.rows import Row, RunDocument
from enginebench.runs.baselines import BaselineList
from enginebench.stats.builds import BuildEffect
from enginebench.stats.capacity import CapacityVerdict
from enginebench.stats.compare import Comparison
from enginebench.stats.diff import Change, DiffDocument, DiffRow
from enginebench.stats.headline import Headline, Rejected
from enginebench.stats.layer_records import EngineLayer, LayersDocument, ProfiledLayer, ProfileDocument
from enginebench.stats.layers import EngineLayerTime, EngineProfileDocument
from enginebench.stats.queueing import LoadPoint
from enginebench.stats.ranking import Ref
from enginebench.stats.stages import StagesDocument
from enginebench.verbs.build import BuildDocument
from enginebench.verbs.calibrate import CalibrateDocument
from enginebench.verbs.doctor import DoctorDocument, FleetDoctorDocument, NodeAnswer
from enginebench.verbs.export import ExportDocument
from enginebench.verbs.infer import InferDocument
from enginebench.verbs.quantize import QuantizeDocument
from pages import Table, find_code, find_section, find_tables, read_page
from processes import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import option_tables

PAGE = read_page("cli.md")

DOCUMENTS: dict[str, type[msgspec.Struct]] = {
    "run": RunDocument,
    "bench": BenchDocument,
    "deliver": DeliverDocument,
    "load": LoadDocument,
    "tune": TuneDocument,
    "build": BuildDocument,
    "export": ExportDocument,
    "drift": DriftDocument,
    "accuracy": AccuracyDocument,
    "infer": InferDocument,
    "stages": StagesDocument,
    "profile": EngineProfileDocument,
    "budget": Budget,
    "fpga simulate": SimulateDocument,
    "fpga synth": Synthesis,
    "calibrate": CalibrateDocument,
    "quantize": QuantizeDocument,
    "doctor": DoctorDocument,
    "doctor --on": FleetDoctorDocument,
    "sweep": SweepDocument,
    "sweep --dry-run": SweepPlan,
    "roofline": Ceilings,
    "env make": EnvironmentsDocument,
    "bisect": BisectDocument,
    "diff": DiffDocument,
    "baseline list": BaselineList,
    "history": HistoryDocument,
    "parse log": LogDocument,
    "parse times": TimesDocument,
    "parse profile": ProfileDocument,
    "parse layers": LayersDocument,
}
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


COMMANDS = dict(option_tables.list_commands())


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a command by the text that the page names them with."""
    options = (p for p in command.params if isinstance(p, click.Option))
    return {" ".join(f"`{name}`" for name in (*o.opts, *o.secondary_opts)): o for o in options}


def test_every_verb_has_a_section_and_every_section_a_verb() -> None:
    assert set(re.findall(r"^## `([\w ]+)`$", PAGE, re.MULTILINE)) == set(COMMANDS)


def test_the_tables_are_those_that_the_declarations_make() -> None:
    assert option_tables.write_tables(PAGE) == PAGE, "run tools/option_tables.py"


def test_common_options_are_those_of_the_verbs_that_are_named() -> None:
    named = find_code(find_section(PAGE, "## Common options").strip().partition(";")[0])
    has_common = [v for v, c in COMMANDS.items() if set(option_tables.COMMON) <= {p.name for p in c.params}]
    assert named == has_common
    without = [verb for verb, command in COMMANDS.items() if "`--json`" not in options_of(command)]
    assert without == ["fpga verilog", "fpga serve"]


@pytest.mark.parametrize("verb", COMMANDS)
def test_the_usage_line_names_the_arguments(verb: str) -> None:
    usage = find_code(find_section(PAGE, f"## `{verb}`"))[0].split()
    arguments = [
        p.make_metavar(click.Context(COMMANDS[verb])) for p in COMMANDS[verb].params if p.param_type_name == "argument"
    ]
    assert usage[: 1 + len(verb.split()) + len(arguments)] == ["enginebench", *verb.split(), *arguments]


def test_exit_codes_are_those_of_the_errors() -> None:
    (table,) = find_tables(find_section(PAGE, "## Exit codes"))
    kinds = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.EngineBenchError)]
    assert {int(row["code"]) for row in table} == {0, INTERRUPTED, *(kind.exit_code for kind in kinds)}


def json_tables() -> list[Table]:
    return find_tables(find_section(PAGE, "## JSON documents"))


def test_documents_have_these_schemas_and_fields() -> None:
    rows = {find_code(row["document"])[0]: row for row in json_tables()[0]}
    for name, kind in DOCUMENTS.items():
        row = rows.pop(name)
        assert find_code(row["fields"]) == list(kind.__struct_fields__), name
        fields = {field.name: field.default for field in msgspec.structs.fields(kind)}
        assert row["schema"] == fields["schema"], name
    assert list(rows) == ["models"]  # printed without a record; its fields are checked with the verb


def test_parts_have_these_fields() -> None:
    rows = {row["part"]: find_code(row["fields"]) for row in json_tables()[1]}
    assert rows == {name: list(kind.__struct_fields__) for name, kind in PARTS.items()}
