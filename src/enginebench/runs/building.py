"""Build every configuration in a child of its own and compute its outputs there, as many at a time as fit."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import DependencyError, EngineBenchError, TimedOut, UsageError
from enginebench.core.records import Artifact, Result
from enginebench.core.warnings import make_warning
from enginebench.runs.builds import (
    can_wait,
    count_builds,
    count_workers,
    describe_build,
    fit_in_memory,
    run_in_memory,
    split_runs,
    tunes,
)
from enginebench.runs.child.arrays import holds_arrays
from enginebench.runs.child.environments import OPTION, find_environment
from enginebench.runs.child.isolate import PATIENCE, Child, Work, child_environment, run_child, wait_until_sure
from enginebench.runs.child.jobs import PreloadJob, PrepareJob, PrepareResponse
from enginebench.runs.folder import RunFolder
from enginebench.runs.plan import PlannedConfiguration
from enginebench.runs.progress import Reporter, report_steps
from enginebench.runs.results import ResultStore, add_warnings, apply_proof, label, list_trials, report_failure
from enginebench.runs.scoring import Scoring
from enginebench.runs.trust import NATIVE_CODE, allow_code

# If two outputs for the same inputs differ by more than this fraction of the largest value, the model is not
# deterministic: a GPU's varying order of sums makes a hundred times less in FP16 (as for the exported graph).
VARIATION = 1e-2


class Begun(Struct, frozen=True, eq=False):
    """A configuration that is built and checked while its model is exported."""

    job: PrepareJob
    child: Child
    work: Work[PrepareResponse]


class ConfigurationBuilder:
    """Builds configurations and computes their outputs, or stores the reason why that failed."""

    def __init__(
        self,
        results: ResultStore,
        *,
        timeout_s: Callable[[], float],
        reporter: Reporter,
        scoring: Scoring | None,
        samples: int,
        at_once: int,
    ) -> None:
        """Take what is built; nothing is done yet.

        Args:
            samples: number of samples for which outputs are computed.
            at_once: number of children that may have imported their engine at a time.
        """
        self._results = results
        self._timeout_s, self._reporter = timeout_s, reporter
        self._scoring, self._samples = scoring, samples
        self._children_at_once, self._workers = at_once, count_workers(results.machine)
        self._begun: dict[str, Begun] = {}
        self.refused: UsageError | None = None
        # Configurations that were built in this process, not by the run that it continues, and are not compared yet.
        self.fresh: set[str] = set()

    def prepare(self, configurations: Sequence[PlannedConfiguration]) -> None:
        """Build and check these configurations, each in a child; those that were prepared before are passed over."""
        waiting = []
        for configuration in configurations:
            result = self._results.current.get(configuration.id)
            if configuration.skip is not None:
                self._results.save(self._skip(configuration, configuration.skip))
            elif result is None or configuration.id in self._begun or self._is_unprepared(result):
                waiting.append(configuration)
            else:
                self._reporter.advance()
        self._wait_for_tuning()
        for group in self._group(waiting):
            if len(group) == 1 and group[0].id not in self._begun:
                self._prepare_alone(group[0])
            else:
                self._prepare_group(group)

    def begin(self, configuration: PlannedConfiguration) -> Begun | None:
        """Start a child that builds and checks this configuration while its model is exported, and return at once.

        None where the export, which keeps to the CPU, would disturb it, or memory does not hold both.
        """
        engine = configuration.engine
        disturbed = engine.device == "cpu" and tunes(engine)
        fits = fit_in_memory([configuration, configuration], self._results.machine)
        if disturbed or not can_wait(engine) or not fits or self._workers == 1:
            return None
        job, child = self.describe_job(configuration), Child(PATIENCE | child_environment(configuration.engine.threads))
        on_note = report_steps(self._reporter, label(configuration))
        return Begun(job, child, child.start(job, timeout_s=self._timeout_s(), on_note=on_note))

    def take_over(self, begun: Mapping[str, Begun]) -> None:
        """Take configurations, by their id, that another builder began."""
        self._begun.update(begun)

    def list_begun(self) -> list[PlannedConfiguration]:
        """List the configurations that were begun, and are not built and checked yet."""
        return [c for c in self._results.configurations.values() if c.id in self._begun]

    def _wait_for_tuning(self) -> None:
        """Wait for what was begun and times kernels: the GPU is its own until it is done."""
        works = [begun.work for begun in self._begun.values() if tunes(begun.job.engine)]
        for work in works:
            work.restart_clock()
        if works:
            wait_until_sure(works)

    def _take_begun(self, configuration: PlannedConfiguration) -> Work[PrepareResponse] | None:
        """Return the work of a child that is at this configuration already; one that has another job is ended."""
        begun = self._begun.pop(configuration.id, None)
        if begun is None:
            return None
        if begun.job != self.describe_job(configuration):
            begun.child.close()
            return None
        begun.work.restart_clock()
        return begun.work

    def build_again(self) -> None:
        """Make the further builds of the configurations that have several."""
        waiting: list[PlannedConfiguration] = []
        for configuration in self._results.configurations.values():
            result = self._results.current.get(configuration.id)
            if result is not None and result.status == "partial":
                waiting += [configuration] * (count_builds(configuration) - max(1, len(result.builds)))
        for group in self._group(waiting):
            for run in split_runs(group, self._results.machine):
                self._build_together(run)

    def _group(self, configurations: Sequence[PlannedConfiguration]) -> list[list[PlannedConfiguration]]:
        """Group the configurations whose children may import at the same time.

        Those of another environment, which may fail to import, are alone and last.
        """
        here = [configuration for configuration in configurations if can_wait(configuration.engine)]
        groups = [here[start : start + self._children_at_once] for start in range(0, len(here), self._children_at_once)]
        return groups + [[configuration] for configuration in configurations if not can_wait(configuration.engine)]

    def _prepare_group(self, configurations: Sequence[PlannedConfiguration]) -> None:
        """Import all engines side by side; then build and check, as many at a time as the machine allows."""
        children: dict[str, Child] = {}
        begun = {c.id: work for c in configurations if (work := self._take_begun(c)) is not None}
        with ExitStack() as stack:
            for configuration in configurations:
                assert configuration.source is not None
                if configuration.id not in begun:
                    child = stack.enter_context(Child(PATIENCE | child_environment(configuration.engine.threads)))
                    child.ask_to_preload(describe_preload(self._results.folder, configuration, configuration.source))
                    children[configuration.id] = child
            deadline = time.monotonic() + self._timeout_s()
            for child in children.values():
                child.wait_until_ready(deadline)
            for run in split_runs(configurations, self._results.machine):
                self._prepare_together(run, children, begun)

    def _prepare_together(
        self,
        configurations: Sequence[PlannedConfiguration],
        children: Mapping[str, Child],
        begun: Mapping[str, Work[PrepareResponse]],
    ) -> None:
        """Build and check configurations at the same time, and make their records one after another.

        Notes of the first child are shown at once, so that a build of minutes is not silent; those of the others in
        their order, so that the log is always the same. A configuration that fails beside others, perhaps for want of
        memory, is tried again alone, but not one that timed out.
        """
        first, *others = configurations
        notes: dict[str, list[str]] = {configuration.id: [] for configuration in others}
        if others:
            self._reporter.step(f"building and checking {len(configurations)} configurations side by side")
        works: list[Work[PrepareResponse]] = []
        for configuration in configurations:
            wait_until_sure(works, left=self._workers - 1)
            if configuration is first:
                self._reporter.step(f"{label(configuration)}: build and check")
            if configuration.id in begun:
                works.append(begun[configuration.id])
                continue
            on_note: Callable[[str], None]
            if configuration is first:
                on_note = report_steps(self._reporter, label(configuration))
            else:
                on_note = notes[configuration.id].append
            works.append(
                children[configuration.id].start(
                    self.describe_job(configuration), timeout_s=self._timeout_s(), on_note=on_note
                )
            )
        wait_until_sure(works)
        for configuration, work in zip(configurations, works, strict=True):
            if configuration is not first:
                self._reporter.step(f"{label(configuration)}: build and check")  # as it would have been shown alone
            outcome = attempt(work.finish)
            for text in notes.get(configuration.id, ()):
                self._reporter.step(f"{label(configuration)}: {text}")
            final = isinstance(outcome, UsageError | DependencyError | TimedOut)
            if isinstance(outcome, EngineBenchError) and not final:
                self._prepare_alone(configuration)
            else:
                self._save_prepared(configuration, outcome, peers=min(len(configurations), self._workers) - 1)

    def _prepare_alone(self, configuration: PlannedConfiguration) -> None:
        self._save_prepared(configuration, attempt(lambda: self.run(configuration, self.describe_job(configuration))))

    def _build_together(self, configurations: Sequence[PlannedConfiguration]) -> None:
        """Make one more build of each configuration at the same time; those that fail are tried again alone."""
        configurations = [
            configuration
            for configuration in configurations
            if self._results.current[configuration.id].status == "partial"
        ]
        peers = min(len(configurations), self._workers) - 1
        builds = [
            len(self._results.current[configuration.id].builds) + configurations[:index].count(configuration)
            for index, configuration in enumerate(configurations)
        ]
        again = []
        with ExitStack() as stack:
            works: list[Work[PrepareResponse]] = []
            for planned_build in zip(configurations, builds, strict=True):
                wait_until_sure(works, left=self._workers - 1)
                works.append(stack.enter_context(self._start_build(*planned_build)))
            wait_until_sure(works)
            for configuration, build, work in zip(configurations, builds, works, strict=True):
                self._reporter.step(f"{label(configuration)}: build {build + 1} of {count_builds(configuration)}")
                result, outputs = (
                    self._results.current[configuration.id],
                    self._find_build_outputs(configuration, build),
                )
                try:
                    build_record = describe_build(
                        work.finish(), self._results.folder.outputs_path(configuration.id), outputs
                    )
                except EngineBenchError as error:
                    if len(configurations) > 1 and not isinstance(error, TimedOut):
                        again.append(configuration)
                        continue
                    when = f"while build {build + 1} of {count_builds(configuration)} was made"
                    self._results.save(report_failure(result, when, error, self._reporter))
                else:
                    outputs.unlink(missing_ok=True)
                    most = max(peers, result.built_beside)
                    self._results.save(replace(result, builds=(*result.builds, build_record), built_beside=most))
                self._reporter.advance()
        for configuration in again:
            self._build_together([configuration])

    @contextmanager
    def _start_build(self, configuration: PlannedConfiguration, build: int) -> Iterator[Work[PrepareResponse]]:
        folder, outputs = (
            make_build_folder(self._results.folder, configuration, build),
            self._find_build_outputs(configuration, build),
        )
        shutil.rmtree(folder, ignore_errors=True)  # files that a killed run may have left
        Path(folder).mkdir(parents=True)
        job = replace(
            self.describe_job(configuration),
            out_dir=folder,
            outputs_path=str(outputs.absolute()),
            further_path="",
            prove=False,
            labelled=None,
        )
        with Child(
            PATIENCE | child_environment(configuration.engine.threads), find_environment(configuration.engine)
        ) as child:
            yield child.start(job, timeout_s=self._timeout_s())

    def _find_build_outputs(self, configuration: PlannedConfiguration, build: int) -> Path:
        """Return the file of one more build's outputs, which is removed once they are compared."""
        return self._results.folder.outputs_path(f"{configuration.id}.build-{build + 1}")

    def _skip(self, configuration: PlannedConfiguration, reason: str) -> Result:
        """Return the result of a configuration that cannot run here; trials that it has are kept."""
        result = self._results.current.get(configuration.id)
        if result is None or not list_trials(result):
            return self._results.begin(configuration, status="skipped", reason=reason)
        why = f"it cannot continue: {reason}"
        return result if result.status == "ok" else replace(result, status="failed", reason=why)

    def _is_unprepared(self, result: Result) -> bool:
        return result.status not in ("failed", "skipped") and self._lacks_outputs(result)

    def _lacks_outputs(self, result: Result) -> bool:
        """Return whether outputs of a restored configuration that are still needed are missing or incomplete."""
        outputs, labelled = self._results.folder.outputs_path(result.id), self._results.folder.labelled_path(result.id)
        begun = bool(list_trials(result))
        # A configuration that was measured without a drift is of a tool that returns no outputs.
        needed = [outputs] if result.drift or not begun else []
        if result.scores or (self._scoring and self._scoring.metrics and not begun):
            needed.append(labelled)
        if needed and result.status == "partial":  # its trials are still to come
            needed.append(self._results.folder.recheck_path(result.id))
        return not all(holds_arrays(path) for path in needed)

    def describe_job(self, configuration: PlannedConfiguration) -> PrepareJob:
        assert configuration.source is not None
        return PrepareJob(
            model=configuration.inputs_model,
            artifact=configuration.source,
            engine=configuration.engine,
            out_dir=make_build_folder(self._results.folder, configuration),
            outputs_path=str(self._results.folder.outputs_path(configuration.id).absolute()),
            samples=self._samples,
            seed=configuration.measure.seed,
            prove=not proves_when_timed(configuration),
            labelled=self._scoring.labelled if self._scoring else None,
            labelled_path=str(self._results.folder.labelled_path(configuration.id).absolute()),
            inputs=self._results.inputs,
            graph=configuration.graph,
            further_path=str(self._results.folder.further_path(configuration.id).absolute()),
            examples=str(self._results.folder.artifacts.absolute()),
            recheck_path=str(self._results.folder.recheck_path(configuration.id).absolute()),
        )

    def _save_prepared(
        self, configuration: PlannedConfiguration, outcome: PrepareResponse | EngineBenchError, peers: int = 0
    ) -> None:
        """Save the configuration as it was built and checked, or the reason why that failed."""
        begun = self._results.current.get(configuration.id) or self._results.begin(configuration, status="partial")
        if isinstance(outcome, DependencyError | UsageError):
            self._results.save(self._skip(configuration, str(outcome)))
            self.refused = outcome if isinstance(outcome, UsageError) else self.refused
        elif isinstance(outcome, EngineBenchError):
            begun = replace(begun, measurements=tuple(list_trials(begun)))  # a time without outputs is no figure
            self._results.save(report_failure(begun, "while it was built and checked", outcome, self._reporter))
        else:
            self.fresh.add(configuration.id)
            self._results.save(self.describe_built(configuration, begun, outcome, peers))
        self._reporter.advance()

    def describe_built(
        self, configuration: PlannedConfiguration, begun: Result, response: PrepareResponse, peers: int
    ) -> Result:
        made = (response.lowered, response.artifact if response.artifact != configuration.source else None)
        if response.artifact.kind == "aoti":  # it was compiled here
            allow_code(f"{NATIVE_CODE} {response.artifact.sha256}")
        if begun.measurements and begun.artifacts[-1].sha256 != response.artifact.sha256:
            begun = self._results.begin(configuration, status="partial")  # those are times of another engine
        prepared = replace(
            begun,
            artifacts=(*configuration.chain, *filter(None, made)),
            engine_version=response.engine_version,
            build_s=response.build_s,
            built_beside=peers,
            size_bytes=response.size_bytes,
            drift=response.drift or begun.drift,
        )
        if count_builds(configuration) > 1 and not prepared.builds:
            outputs = self._results.folder.outputs_path(configuration.id)
            prepared = replace(prepared, builds=(describe_build(response, outputs, outputs),))
        if response.varies > VARIATION:
            prepared = add_warnings(prepared, make_warning("outputs_vary", row=configuration.id, share=response.varies))
        return apply_proof(prepared, response.proof) if response.proof else prepared

    def run(self, configuration: PlannedConfiguration, job: PrepareJob) -> PrepareResponse:
        self._reporter.step(f"{label(configuration)}: build and check")
        on_note = report_steps(self._reporter, label(configuration))
        return run_in_memory(
            job, lambda less: run_child(less, timeout_s=self._timeout_s(), on_note=on_note), self._reporter.say
        )


def attempt(call: Callable[[], PrepareResponse]) -> PrepareResponse | EngineBenchError:
    try:
        return call()
    except EngineBenchError as error:
        return error


def proves_when_timed(configuration: PlannedConfiguration) -> bool:
    """Return whether the engine's record comes from the first trial, not from the build and check.

    On a GPU libraries choose kernels anew in each process, and other processes may use it during builds. On a CPU the
    record comes from a session of its own, which must not be loaded into a process that is timed.
    """
    return configuration.engine.device != "cpu"


def make_build_folder(folder: RunFolder, configuration: PlannedConfiguration, build: int = 0) -> str:
    """Make the folder for an engine's files; each environment and each build has its own."""
    artifacts, environment = folder.artifacts, configuration.engine.options.get(OPTION)
    path = folder.build_path(configuration.id, build) if count_builds(configuration) > 1 else artifacts
    if environment:
        path = artifacts / f"env-{environment}" / path.relative_to(artifacts)
    path.mkdir(parents=True, exist_ok=True)
    return str(path.absolute())


def describe_preload(folder: RunFolder, configuration: PlannedConfiguration, artifact: Artifact) -> PreloadJob:
    return PreloadJob(engine=configuration.engine, kind=artifact.kind, out_dir=make_build_folder(folder, configuration))
