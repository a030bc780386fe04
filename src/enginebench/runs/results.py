"""The current result of every configuration of a run in progress: each is stored whenever it changes."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.errors import (
    ArtifactError,
    EngineBenchError,
    GateFailed,
    MeasurementError,
    ParseError,
    UnsupportedOperator,
    add_note,
    refuse_all,
)
from enginebench.core.names import format_engine, format_precision
from enginebench.core.records import Machine, Measurement, Precision, Result, ResultWarning, Status
from enginebench.core.shapes import find_open_outputs, find_size, format_shapes
from enginebench.core.store import write_atomic
from enginebench.core.text import count_of
from enginebench.models.samples import find_samples
from enginebench.runs.child.environments import find_environment, list_versions
from enginebench.runs.child.jobs import Proof
from enginebench.runs.child.proving import make_record_warning
from enginebench.runs.folder import RunFolder, RunRequest
from enginebench.runs.plan import PlannedConfiguration, find_axes
from enginebench.runs.progress import Reporter
from enginebench.runs.trust import holds_refused
from enginebench.stats.alike import assess_outputs
from enginebench.stats.effective import check_precision

# Codes of warnings about a configuration's outputs, which stay when the record of its precision is added.
ABOUT_OUTPUTS = ("no_score", "outputs_vary", "random_inputs", "outputs_differ", "outputs_not_compared")
# Number of trials of a configuration that is measured until its caller stops.
ENDLESS = 1_000_000
# The number of the trial before the first slow build begins, for a first table.
FIRST_LOOK = -1
# The number of the trial before the model is exported, so that an interrupted export leaves a figure. The
# next trial of the configuration replaces it.
BEFORE_EXPORT = -2

Key = tuple[str, int, str]  # model whose inputs are fed, batch, shapes


class ResultStore:
    """The configurations of a run; `current` has the result of each that was begun, in the order of the plan."""

    def __init__(self, folder: RunFolder, configurations: Sequence[PlannedConfiguration], machine: Machine) -> None:
        self.folder, self.machine = folder, machine
        self.configurations = {configuration.id: configuration for configuration in configurations}
        self.added: set[str] = set()  # configurations that were not requested; they do not count as progress
        self.current: dict[str, Result] = {}
        self.inputs = find_samples(folder.artifacts)  # the user's own; None: made-up ones

    def add(self, configurations: Sequence[PlannedConfiguration]) -> None:
        """Add configurations after those that it has."""
        self.configurations.update((configuration.id, configuration) for configuration in configurations)

    def adopt(self, configuration: PlannedConfiguration, prepared: Result) -> None:
        """Add a configuration that was built and checked under another id, to measure it again."""
        self.add([configuration])
        folder = self.folder
        for find in (folder.outputs_path, folder.labelled_path, folder.recheck_path, folder.further_path):
            if (kept := find(prepared.id)).exists():
                write_atomic(find(configuration.id), kept.read_bytes())
        self.save(
            replace(
                prepared,
                id=configuration.id,
                measure=configuration.measure,
                measurements=(),
                status="partial",
                reason=None,
            )
        )

    def finish(self, ids: Mapping[str, str]) -> None:
        """End configurations as measured often enough.

        Args:
            ids: the id under which a configuration was built and compared -> its id here.
        """
        for result in (self.current[configuration_id] for configuration_id in ids.values()):
            if result.status == "partial" and result.measurements:
                measure, drift = replace(result.measure, processes=len(result.measurements)), result.drift
                if drift is not None:
                    here = ids.get(drift.reference)
                    drift = replace(drift, reference=here or drift.reference, elsewhere=here is None)
                self.save(replace(result, status="ok", measure=measure, drift=drift))

    def restore(self, *, with_failed: bool = False) -> None:
        """Restore the configurations that an earlier, interrupted run stored."""
        for configuration_id, configuration in self.configurations.items():
            if configuration_id in self.current:
                continue
            stored = self.folder.read_result(configuration_id)
            if stored is not None and Path(stored.model).name != Path(configuration.model).name:
                path, advice = (
                    self.folder.configuration_path(configuration_id),
                    "Delete it to measure this configuration again",
                )
                raise ParseError(path, "$.model", repr(stored.model), repr(configuration.model), advice)
            if stored is not None and with_failed and stored.status in ("failed", "skipped"):
                self.current[configuration_id] = stored
                continue
            if stored is None or not has_outputs(stored):
                continue  # it begins anew
            timed = tuple(one for one in stored.measurements if one.latency_ns)
            if timed != stored.measurements:  # a trial without samples is measured again
                stored = replace(stored, measurements=timed, look=None)
            finished = stored.look is not None or len(list_trials(stored)) >= configuration.measure.processes
            compiled = any(map(holds_refused, (*stored.artifacts, *(build.artifact for build in stored.builds))))
            if compiled and not finished:
                continue  # native code that this program did not compile: it begins anew
            try:
                if not compiled:  # else it is not loaded again
                    stored = self.folder.change_paths(stored, self.folder.open)
            except ArtifactError:
                if stored.measurements:
                    raise
                continue  # nothing was measured on it: it is built anew
            # The precision that ran is kept; the other settings of the engine come from the plan.
            ran = replace(configuration.engine, precision=stored.engine.precision, recipe=stored.engine.recipe)
            status: Status = "ok" if finished else "partial"
            self.current[configuration_id] = replace(stored, engine=ran, status=status, reason=None, stderr_tail=None)

    def begin(self, configuration: PlannedConfiguration, **fields: object) -> Result:
        try:
            environment = find_environment(configuration.engine)
        except EngineBenchError:  # the configuration is skipped for that reason
            environment = None
        machine = replace(self.machine, versions=list_versions(environment)) if environment else self.machine
        return Result(
            id=configuration.id,
            model=configuration.model,
            engine=configuration.engine,
            measure=configuration.measure,
            requested_precision=configuration.requested_precision,
            machine=machine,
            artifacts=configuration.chain,
            beside=configuration.beside[1] if configuration.beside else None,
            axes=find_axes(configuration.engine, configuration.source),
            **fields,  # type: ignore[arg-type]
        )

    def save(self, result: Result) -> None:
        self.current[result.id] = result
        self.current = {
            configuration_id: self.current[configuration_id]
            for configuration_id in self.configurations
            if configuration_id in self.current
        }
        self.folder.write_result(result)

    def save_if_new(self, result: Result) -> None:
        if result != self.current[result.id]:
            self.save(result)

    def list_alike(self) -> list[list[PlannedConfiguration]]:
        """Group the configurations that were built, or that cannot be, by the key of their inputs."""
        groups: dict[Key, list[PlannedConfiguration]] = {}
        for configuration in self.configurations.values():
            if configuration.id in self.current:
                groups.setdefault(find_key(configuration), []).append(configuration)
        return list(groups.values())

    def list_precisions(self) -> tuple[Precision | None, ...]:
        """Return the requested precision of every configuration."""
        return tuple(configuration.requested_precision for configuration in self.configurations.values())


def find_key(configuration: PlannedConfiguration) -> Key:
    """Return the key of a configuration's inputs: those with the same key get the same inputs."""
    return configuration.inputs_model, *find_size(configuration.engine)


def report_failure(result: Result, when: str, error: EngineBenchError, reporter: Reporter) -> Result:
    """Report that a configuration failed, and return its result with the reason."""
    reason = str(error) if isinstance(error, UnsupportedOperator) else f"{when}: {error}"
    advice = {c.advice: None for a in result.artifacts for c in a.warnings if c.template == "chosen_shapes.refused"}
    reason = "; ".join((reason, *advice))
    reporter.say(f"{label(result)} failed {when}: {error}")
    log = "\n".join(text for text in (error.stderr_tail.rstrip(), error.log) if text)
    return replace(result, status="failed", reason=reason, stderr_tail=log or None)


def note_kept(interrupt: KeyboardInterrupt, results: Iterable[Result], root: Path) -> None:
    """Add to an interrupt how many trials are stored in `root`, if any are."""
    trials = [len(result.measurements) for result in results if result.measurements]
    if trials:
        configurations = count_of(len(trials), "configurations")
        add_note(interrupt, f"kept in {root}: {count_of(sum(trials), 'trials')} of {configurations}")


def has_changed(result: Result) -> bool:
    """Return whether its outputs differ from the reference's by more than the limits."""
    return assess_outputs(result, is_reference=False)[0] == "changed"


def has_outputs(result: Result) -> bool:
    """Return whether the configuration computed outputs for the check inputs, even if it failed later in a trial."""
    return result.status in ("ok", "partial") or bool(list_trials(result))


def is_first_look(result: Result) -> bool:
    """Return whether the only trial of a configuration is that before the slow builds."""
    return bool(result.measurements) and all(m.trial == FIRST_LOOK for m in result.measurements)


def list_trials(result: Result) -> list[Measurement]:
    """Return the trials of a configuration, without the one before the export, which nothing is compared with."""
    return [m for m in result.measurements if m.trial != BEFORE_EXPORT]


def apply_proof(result: Result, proof: Proof) -> Result:
    """Return the result with the engine's record and the precision that ran, or with a warning without a record."""
    kept = [warning for warning in result.warnings if warning.code in ABOUT_OUTPUTS]
    if proof.failure is not None:
        return replace(
            result, warnings=(*kept, make_record_warning(result.requested_precision, proof.failure), *proof.warnings)
        )
    ran, warnings = check_precision(
        result.requested_precision, proof.effective_precision, result.engine.device, proof.weights
    )
    return replace(
        result,
        engine=replace(result.engine, precision=ran),
        effective_precision=proof.effective_precision,
        warnings=(*kept, *warnings, *proof.warnings),
        layers=proof.layers,
    )


def label(configuration: PlannedConfiguration | Result) -> str:
    spec = configuration.engine
    precision = format_precision(configuration.requested_precision, spec.recipe, spec.mix)
    if spec.traffic:
        return f"{format_engine(spec)} {precision}"
    batch = f" b{spec.batch}" if spec.batch > 1 else ""
    return f"{format_engine(spec)} {precision}{batch} {format_shapes(spec.shapes)}".rstrip()


def list_open_outputs(result: Result) -> set[str]:
    """Return the names of the outputs whose length depends on the values."""
    artifact = result.artifacts[-1]
    return find_open_outputs(artifact.inputs, artifact.outputs)


def add_warnings(result: Result, *warnings: ResultWarning) -> Result:
    return replace(result, warnings=tuple(dict.fromkeys((*result.warnings, *warnings))))


def check_outcome(results: Sequence[Result], request: RunRequest) -> None:
    """Check that the baseline and one other configuration are ok; the baseline alone if no engines were named."""
    if results and all(r.status == "skipped" for r in results):
        raise refuse_all(r.reason or r.status for r in results)
    attempted = [r for r in results if r.status != "skipped"]
    ok = [r for r in attempted if r.status == "ok"]
    if attempted and attempted[0].status == "ok" and (len(ok) > 1 or len(results) == 1 or request.any_engine):
        return
    alike: dict[str, list[str]] = {}
    for r in results:
        if r.status != "ok":
            alike.setdefault(r.reason or r.status, []).append(label(r))
    bad = (
        "; ".join(f"{', '.join(configurations)}: {reason}" for reason, configurations in alike.items())
        or "there is no configuration"
    )
    if attempted and attempted[0].status == "ok":
        raise MeasurementError(f"the baseline is ok, but no other configuration is. Not ok: {bad}")
    raise MeasurementError(f"the baseline and at least one other configuration must be ok. Not ok: {bad}")


def check_precisions(results: Sequence[Result]) -> None:
    """Check that every configuration ran in its requested precision."""
    wrong = [
        f"{label(r)}: asked for {r.requested_precision}, ran in {r.engine.precision}"
        for r in results
        if r.status != "skipped" and r.engine.precision != r.requested_precision
    ]
    if wrong:
        raise GateFailed(f"--strict-precision: {'; '.join(wrong)}")
