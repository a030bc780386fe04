"""`deliver`: write a configuration of a stored run as a folder that runs without EngineBench."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

import enginebench
from enginebench import door
from enginebench.core.commands import format_command, join_words, tell_from_option
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.input_sets import CELL, CELL_CALLS
from enginebench.core.names import find_configurations, shorten_ids
from enginebench.core.records import Artifact, Result, TensorSpec
from enginebench.core.shapes import find_padding, list_cells, name_cells, open_artifact, size_artifact
from enginebench.core.store import encode, write_atomic
from enginebench.core.text import clean_text, count_of, list_some
from enginebench.engines.registry import complete_options, find_installed
from enginebench.features.deliver.readme import format_readme
from enginebench.models.zoo import find_labels
from enginebench.options import Opt, PathLike, Printed, Progress, Texts, Trusting, Unpack, verb
from enginebench.runs.bundles import Bundle, Figures
from enginebench.runs.child.isolate import child_environment
from enginebench.runs.folder import RunFolder, RunRequest, Stored, read_results
from enginebench.runs.progress import Reporter
from enginebench.runs.trust import trust_artifact
from enginebench.verbs.common import open_progress, split_texts

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Feeds
    from enginebench.report.run.rows import Row, RunDocument

CHECK_TIMEOUT_S = 1800.0
# The figures that the check of a bundle computes.
CHECKED = ("snr", "centred_cosine")


class DeliverDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `deliver`. `checked`: the bundle reproduced the measured outputs here."""

    schema: str = "enginebench.deliver/1"
    bundle: str
    row: str
    files: tuple[str, ...]
    checked: bool
    notes: tuple[str, ...] = ()  # why it was not checked, and the configuration's warnings


class DeliverOptions(Progress, total=False):
    row: Annotated[str | None, Opt("Id of the configuration. [the recommended one]", metavar="ID")]
    forms: Annotated[
        Texts,
        Opt(
            "Also write it in this form; can be repeated. bundle adds nothing.",
            (),
            names="--as",
            multiple=True,
            choices=("bundle", "triton", "kserve", "dockerfile"),
        ),
    ]
    force: Annotated[
        bool, Opt("Write the bundle even if it fails its own check here, or the run found its outputs changed.", False)
    ]


Out: TypeAlias = Annotated[
    PathLike, Opt("Folder of the bundle.", path="new folder", required=True, more="It must be empty or not there")
]


@verb(DeliverOptions)
def deliver(run: PathLike, out: Out, **options: Unpack[DeliverOptions]) -> DeliverDocument:
    """Deploy a configuration of a stored run: a folder that runs without EngineBench.

    Example: enginebench deliver results/first --out bundle

    RUN is the folder of the run. The bundle contains the model, predict.py, its requirements, a check and the
    measured figures, and needs only the runtime and NumPy. Before it is written, its own program must reproduce the
    measured outputs.

    Args:
        run: the folder of the run.

    Raises:
        UsageError: there is no such row, none is recommended, it cannot be delivered, its outputs are changed, or `out`
            holds something.
        ArtifactError: the row's files are gone or were changed, or the bundle's outputs are others.
    """
    forms = tuple(split_texts(options["forms"]))
    with open_progress(options["progress"]) as reporter:
        return deliver_configuration(
            Path(run), Path(out), row=options["row"], forms=forms, force=options["force"], reporter=reporter
        )


@door.command(deliver, "RUN", shown=Trusting)
def command(run: str, out: str, shown: Printed, **options: Unpack[DeliverOptions]) -> None:
    door.show(deliver(run, out, **options), shown, lambda document, _: print_delivery(document))


def print_delivery(document: DeliverDocument, *, err: bool = False) -> None:
    for line in format_delivery(document):
        click.echo(line, err=err)


def deliver_run(run: PathLike, out: PathLike, /, **options: Any) -> DeliverDocument:
    """Deliver for `Run.deliver` and `tune`."""
    return deliver(run, out, **options)


def deliver_also(root: Path, out: PathLike) -> None:
    """Deliver the configuration that a run recommends, for a verb of the command line that has just made the run."""
    print_delivery(deliver(root, out, progress=True), err=True)


def format_delivery(document: DeliverDocument) -> Iterator[str]:
    checked = "its outputs are as measured" if document.checked else "NOT checked"
    yield f"{document.bundle}: {document.row}, {count_of(len(document.files), 'files')}; {checked}"
    yield from (f"  {clean_text(note)}" for note in document.notes)
    # What did not run here would not run when typed: the notes say what it needs first.
    if document.checked:
        script = tell_from_option(str(Path(document.bundle) / "predict.py"))
        yield f"Try it: {join_words(['python', script, '--check'])}"


def deliver_configuration(
    root: Path, out: Path, *, row: str | None = None, forms: Sequence[str] = (), force: bool = False, reporter: Reporter
) -> DeliverDocument:
    """Write a configuration of the run in `root` as a bundle at `out`, and let the bundle check its outputs.

    Without an id it is the configuration that the run, or a search, recommends. `out` is made, and left as it was if
    anything goes wrong.
    """
    from enginebench.features.deliver import writing
    from enginebench.features.deliver.planning import refuse_delivery
    from enginebench.features.deliver.servers import add_forms, check_forms
    from enginebench.report.run.head import format_missing
    from enginebench.runs.reporting import describe_stored
    from enginebench.runs.targets.sides import open_stored

    check_forms(forms)
    record, results = read_results(root)
    alone = [result for result in results if result.beside is None]
    if row is None and len(alone) < len(results):
        ids = " or ".join(result.id for result in alone)
        raise UsageError(f"{root} holds two engines beside each other, and recommends neither; name one: --row {ids}")
    results = alone  # the times beside another one are no figures of a bundle
    document = describe_stored(record, results)
    result, described = choose_configuration(document, results, row)
    if refusal := refuse_delivery(root, record.request, result):
        advice = "Name another configuration with --row"
        raise type(refusal)(f"{result.id} cannot be delivered: {str(refusal).rstrip('.')}. {advice}")
    if not force:
        refuse_changed(described)
    stored = open_stored(RunFolder(root).configuration_path(result.id))
    if stored.result.artifacts[-1].kind == "aoti":  # its check runs it
        trust_artifact(stored.result.artifacts[-1], root)
    with writing.open_stage(out) as stage:
        reporter.step(f"{result.id}: writing the bundle")
        bundle = write_bundle(stage, RunFolder(root), stored, described, record.request)
        add_forms(stage, bundle, forms)
        bundle = writing.seal(stage, bundle)
        reporter.step(f"{result.id}: checking the bundle")
        reason = check_bundle(stage, bundle, force=force)
        writing.verify_copy(stage, bundle)
    warnings = [clean_text(warning.message) for warning in bundle.warnings]
    if warnings:  # what they advise is for the run, and its options are none of this verb
        warnings.append(f"what to do about them: {format_command('report', str(root), options=[('--warnings', None)])}")
    if bundle.figures.validity != "valid":
        warnings.insert(0, "its absolute times were disturbed")
    if described.comparison.ratio_validity == "not_given":
        warnings.insert(0, f"no ratio: {described.comparison.ratio_reason}")
    if bundle.figures.outputs_agree is False:
        warnings.insert(0, "its outputs do not agree with the reference of the run")
    return DeliverDocument(
        bundle=str(out),
        row=result.id,
        files=("bundle.json", *(file.path for file in bundle.files)),
        checked=reason is None,
        notes=(*([reason] if reason else []), *format_missing(document), *warnings),
    )


def choose_configuration(document: RunDocument, results: Sequence[Result], row: str | None) -> tuple[Result, Row]:
    """Return the configuration with this id, or the recommended one."""
    short = shorten_ids(document.rows)
    wanted = document.recommended.id if row is None and document.recommended is not None else row
    if wanted is None and document.recommended_by == "search":
        raise UsageError("the search named no winner, so there is nothing to deliver; continue it with `tune --resume`")
    if wanted is None:
        raise UsageError(
            "the run recommends no configuration: none was measured that meets the limits. Read its report, then name "
            f"one with --row: {', '.join(short.values())}"
        )
    fits = find_configurations(wanted, results)
    if len(fits) > 1:
        named = ", ".join(short[configuration_id] for configuration_id in fits)
        raise UsageError(f"--row {wanted} fits {len(fits)} configurations; expected one of {named}")
    if not fits:
        if not short:
            raise UsageError(
                f"the run has no configuration {wanted!r}: it holds none at all. Measure it with `run --resume`"
            )
        near = difflib.get_close_matches(wanted, short.values(), n=len(short), cutoff=0.0)
        raise UsageError(
            f"the run has no configuration {wanted!r}; expected one of these, the most similar first: {list_some(near)}"
        )
    result = next(result for result in results if result.id == fits[0])
    return result, next(line for line in document.rows if line.id == result.id)


def refuse_changed(row: Row) -> None:
    """Raise UsageError if the run found that a configuration's outputs differ from the reference."""
    if row.outputs == "changed":
        raise UsageError(
            f"{row.id} changes the outputs ({row.outputs_reason}). Name another configuration with --row, or deliver "
            "this one as it is with --force"
        )


def write_bundle(stage: Path, folder: RunFolder, stored: Stored, row: Row, request: RunRequest) -> Bundle:
    from enginebench.features.deliver import writing
    from enginebench.features.deliver.modules import find_module
    from enginebench.models.task import preprocess_for

    result, contents = stored.result, (writing.CPU if stored.spec.device == "cpu" else writing.GPU)[stored.spec.backend]
    versions = result.machine.versions if result.machine else {}
    runtime = writing.find_versions(contents.runtime, versions)
    if not runtime:
        raise ArtifactError(f"{result.id} has no record of which {contents.runtime[0]} was measured; run it again")
    module = find_module(stored.chain[-1]) if stored.chain[-1].kind == "torch" else None
    requirements = runtime | writing.find_versions(contents.others, versions) | (module.packages if module else {})
    write_artifact = writing.write_weights if module else writing.copy_model
    artifact = open_artifact(write_artifact(stage, stored.chain[-1]), stored.spec)
    writing.copy_engine(stage, contents)
    if module and module.source and module.module.file:
        write_atomic(stage / module.module.file, module.source.read_bytes())
    if (preprocess := preprocess_for(result.model, request.input_size, artifact.inputs)) is not None:
        write_atomic(stage / "preprocess.json", encode(preprocess, indent=2))
        writing.copy_sources(stage, writing.PICTURES)
        writing.copy_programs(stage, "preprocess.py")
        if labels := find_labels(result.model):
            write_atomic(stage / "labels.json", msgspec.json.format(msgspec.json.encode(labels), indent=1))
        requirements |= {"pillow": versions.get("pillow", "")}
    write_atomic(stage / "requirements.txt", writing.format_requirements(requirements).encode())
    write_configuration_check(stage, folder, stored, from_user=request.inputs is not None)
    bundle = describe_bundle(stored, row, artifact, runtime, requirements)
    bundle = replace(bundle, module=module.module if module else None)
    write_atomic(stage / "README.md", format_readme(bundle).encode())
    return writing.seal(stage, bundle)


def write_configuration_check(stage: Path, folder: RunFolder, stored: Stored, *, from_user: bool) -> None:
    """Write `check.npz`: the run's check inputs (the user's, or from their seed), and the configuration's outputs."""
    from enginebench.features.deliver import writing
    from enginebench.models.samples import SAMPLES, find_samples, read_samples
    from enginebench.models.task import sample_feeds
    from enginebench.runs.checking import CHECK_SAMPLES
    from enginebench.runs.child.arrays import load_outputs, load_sets

    result, spec, specs = stored.result, stored.spec, stored.chain[-1].inputs
    outputs, calls = load_outputs(folder.find_outputs(result.id))
    samples = find_samples(folder.artifacts)
    if samples is not None:
        feeds, outputs = join_given(read_samples(samples), outputs, specs, spec.batch)
    elif from_user:
        raise ArtifactError(
            f"{folder.artifacts / SAMPLES} is gone: the inputs of the run, without which the bundle's outputs "
            "cannot be checked. Run it again"
        )
    else:
        count = calls or -(-CHECK_SAMPLES // spec.batch)
        feeds = [*sample_feeds(specs, result.model, spec.batch, result.measure.seed, count)]
    ranks = {output.name: len(output.shape) for output in stored.chain[-1].outputs}
    writing.write_check(stage, feeds, outputs, ranks)
    sets = load_sets(folder.further_path(result.id)) if spec.traffic else {}
    cells, names = list_cells(result.engine), name_cells(result.engine.traffic)
    for i, cell in [*enumerate(cells)][1:]:  # the same inputs as of the run's own check
        sized = size_artifact(stored.chain[-1], cell).inputs
        samples_path = find_samples(folder.artifacts)
        feeds = [*sample_feeds(sized, result.model, cell.batch, result.measure.seed, CELL_CALLS, samples_path)]
        if CELL + names[i] not in sets:
            raise ArtifactError(f"the run keeps no outputs of {names[i]}, which the bundle would check; run it again")
        writing.write_check(stage, feeds, sets[CELL + names[i]], ranks, f"check-{i + 1}.npz")


def join_given(
    entries: Sequence[Feeds], outputs: Mapping[str, Array], specs: Sequence[TensorSpec], batch: int
) -> tuple[list[Feeds], dict[str, Array]]:
    """Return (calls of one shape, their outputs) of a configuration that has one output for each given entry."""
    from enginebench.models.samples import find_batch, group_samples, join_samples

    entries = entries[: min(map(len, outputs.values()))]
    step = find_batch(specs, batch)
    groups = group_samples(entries, step, specs)
    shapes = [[entries[group[0]][spec.name].shape for spec in specs] for group in groups]
    alike = [group for group, own in zip(groups, shapes, strict=True) if own == shapes[0]]
    feeds: list[Feeds] = [join_samples([entries[i] for i in group], specs, step) for group in alike]
    order = [group[i % len(group)] for group in alike for i in range(step)]
    return feeds, {name: array[order] for name, array in outputs.items()}


def describe_bundle(
    stored: Stored, row: Row, artifact: Artifact, runtime: dict[str, str], requirements: dict[str, str]
) -> Bundle:
    from enginebench.features.deliver import writing
    from enginebench.stats.drift import default_limits

    result, spec, machine = stored.result, stored.spec, stored.result.machine
    cpu = f"{machine.cpu_model}, {machine.cores_physical} cores" if machine else "an unknown machine"
    return Bundle(
        model=result.model,
        row=result.id,
        engine=spec,
        options=complete_options(spec),
        precision=result.engine.precision,
        scope=result.measure.scope,
        engine_version=result.engine_version,
        artifact=artifact,
        chain=tuple(replace(a, path=Path(a.path).name) for a in stored.chain),
        files=(),
        environment={k: v for k, v in child_environment(spec.threads).items() if not k.startswith("ENGINEBENCH_")},
        padding=find_padding(spec, artifact.inputs),
        pinned_cpus=result.measurements[0].pinned_cpus,
        runtime=runtime,
        requirements=requirements,
        instructions=writing.find_instructions(result.engine.precision, machine, spec),
        gpu=row.setup.gpu,
        limits={name: limit for name, limit in default_limits(result.requested_precision).items() if name in CHECKED},
        check_seed=result.measure.seed,
        figures=_take_figures(row),
        machine_name=row.setup.gpu or cpu,
        machine=machine,
        drift=result.drift,
        scores=result.scores,
        effective_precision=result.effective_precision,
        warnings=row.warnings,
        measured_utc=result.measurements[0].started_utc,
        made_by={"enginebench": enginebench.__version__},
    )


def is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _take_figures(row: Row) -> Figures:
    if row.p50_ms is None:
        raise ArtifactError(f"{row.id} has no times, which its bundle would state; measure it first")
    return Figures(
        p50_ms=row.p50_ms,
        p99_ms=row.p99_ms,
        throughput_per_s=row.throughput_per_s,
        speedup=row.speedup,
        baseline=row.baseline,
        verdict=row.verdict,
        validity=row.validity,
        processes=row.processes,
        n=row.n,
        outputs_agree=row.agreement.outputs_agree,
        outputs=row.outputs,
        outputs_reason=row.outputs_reason,
    )


def check_bundle(stage: Path, bundle: Bundle, *, force: bool) -> str | None:
    """Return None if the bundle's own program reproduces the outputs; else why it was not run, or what it printed."""
    here = find_installed(bundle.engine.backend)
    if not here.available:
        return f"not checked: {here.reason}. Where the engine is: python predict.py --check"
    if missing := [name for name in bundle.requirements if name not in bundle.runtime and not is_installed(name)]:
        return (
            f"not checked: it needs {', '.join(missing)}, not installed here. In the bundle: "
            "pip install -r requirements.txt, then python predict.py --check"
        )
    command = [sys.executable, "predict.py", "--check", *(["--force"] if force else [])]
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=stage,
            env=variables,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ArtifactError(f"the bundle of {bundle.row} did not respond within {CHECK_TIMEOUT_S:g} s") from error
    if done.returncode == 0:
        return None
    # The outputs that differ from the measured ones, else the last line of the error.
    broken = [line for line in done.stdout.splitlines() if "NOT within" in line]
    broken = broken or (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["no word"]
    reason = f"the bundle of {bundle.row} does not pass its own check here: {'; '.join(broken)}"
    if force:
        return reason
    raise ArtifactError(f"{reason}. Deliver where it was measured, or force it with --force")
