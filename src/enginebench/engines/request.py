"""Check what every backend requires of a request before it loads anything: artifact, precision, options."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path

from enginebench.core.commands import format_command
from enginebench.core.engine_api import check_state as check_state  # which engines of other packages take from here
from enginebench.core.entry import Option
from enginebench.core.errors import ArtifactError, BackendUnavailable, UsageError
from enginebench.core.names import format_precision, require_precision
from enginebench.core.recipes import find_graph_precision, find_start
from enginebench.core.records import TEXT, Artifact, ArtifactKind, Availability, EngineSpec, Precision
from enginebench.core.text import parse_finite


def make_availability(
    engine: str, devices: tuple[str, ...], version: str | None, reason: str | None, fix: str | None = None
) -> Availability:
    """Available if there are devices; if there are none, with `reason` and `fix`."""
    if devices:
        reason = fix = None
    return Availability(
        engine=engine, available=bool(devices), version=version, devices=devices, reason=reason, fix=fix
    )


def read_options(spec: EngineSpec, declared: Mapping[str, Option]) -> dict[str, str]:
    """Return every declared option with its value: the one of `spec`, else the default."""
    for key, value in spec.options.items():
        if key not in declared:
            descriptions = (
                f"{name}={'|'.join(o.choices)} ({o.meaning}; default {o.default})"
                if o.choices
                else f"{name}={o.default} ({o.meaning})"
                for name, o in declared.items()
            )
            raise UsageError(f"engine {spec.backend} has no option {key!r}; known: {'; '.join(descriptions) or 'none'}")
        option = declared[key]
        if option.choices and value not in option.choices:
            raise UsageError(
                f"option {key}={value!r} of engine {spec.backend} must be one of: {', '.join(option.choices)}"
            )
        check_names(spec, key, value, option)
        if not option.choices and option.default.isdecimal():
            read_number(spec, key, value, option.signed)
    return {key: spec.options.get(key, option.default) for key, option in declared.items()}


def check_names(spec: EngineSpec, key: str, text: str, option: Option) -> None:
    """Check that an option that takes names has only names that it knows: the runtime would pass over another one."""
    for name in text.split("+") if option.names and text else ():
        if name not in option.names:
            near = " or ".join(get_close_matches(name, option.names, 2)) or "none is spelled like it"
            raise UsageError(
                f"option {key}={text!r} of engine {spec.backend}: {name!r} is none of the {len(option.names)} names "
                f"that it knows (near: {near}). Expected NAME, or NAME+NAME; docs/engines.md lists them"
            )


def read_number(spec: EngineSpec, key: str, text: str, signed: bool = False) -> float:
    """The value of a numeric option; zero or more unless `signed`."""
    number = parse_finite(text)
    if number is None or (number < 0 and not signed):
        expected = "a number" if signed else "a number, zero or more"
        raise UsageError(f"option {key}={text!r} of engine {spec.backend} must be {expected}")
    return number


def check_request(
    artifact: Artifact,
    spec: EngineSpec,
    kinds: tuple[ArtifactKind, ...],
    precisions: Collection[str],
    devices: tuple[str, ...] = ("cpu",),
    reasons: Mapping[Precision, str] | None = None,
    text: bool = False,
) -> None:
    """Check that this engine accepts the artifact, the precision, the device and the thread count."""
    if artifact.kind not in kinds:
        raise ArtifactError(
            f"engine {spec.backend} takes {' or '.join(kinds)} artifacts; {artifact.model} comes as {artifact.kind}"
        )
    if artifact.path and not Path(artifact.path).is_file():
        raise ArtifactError(f"the artifact's file does not exist: {artifact.path}. If it was moved, export it again")
    if spec.precision not in precisions and not (artifact.kind == "plan" and spec.precision is None):
        why = (reasons or {}).get(require_precision(spec.precision))
        raise BackendUnavailable(
            f"engine {spec.backend} runs {', '.join(precisions)} here, not {spec.precision}{f': {why}' if why else ''}"
        )
    if spec.device not in devices:
        raise BackendUnavailable(f"engine {spec.backend} runs on {', '.join(devices)}, not on {spec.device}")
    if words := [] if text else [s.name for s in artifact.inputs if s.dtype == TEXT]:
        raise ArtifactError(
            f"engine {spec.backend} takes no text, and the input {', '.join(words)} is text; engine ort takes it"
        )
    if spec.threads < 1 or spec.batch < 1:
        raise UsageError(f"threads and batch must be 1 or more; found {spec.threads} and {spec.batch}")


def check_graph_precision(artifact: Artifact, spec: EngineSpec) -> None:
    """Check that the graph has the precision and the recipe that the configuration is named after.

    A graph engine runs a graph as it is: the precision is the graph's, and a label alone would change nothing.
    """
    recipe = find_start(spec.backend, spec.recipe)
    wanted = format_precision(spec.precision, recipe)
    actual = f"{artifact.path} is {format_precision(artifact.precision, artifact.recipe)}"
    graph = find_graph_precision(spec.backend, spec.precision)
    make = f"Make one with {format_command('quantize', 'F.onnx', options=[('--to', wanted)])}"
    if artifact.precision not in (graph, spec.precision):
        advice = f"Ask for {artifact.precision}, or give the graph that it was made from" if graph == "fp32" else make
        own = f"engine {spec.backend} runs a graph in its own precision: {wanted} needs such a graph"
        raise ArtifactError(f"{own}, and {actual}. {advice}")
    if recipe is not None and artifact.recipe not in (recipe, "qat"):
        raise ArtifactError(f"{actual}, not {wanted}. {make}")


def check_instructions(spec: EngineSpec, supported: bool, forced: bool) -> None:
    """Check that this CPU computes in the precision of `spec` (BF16 or FP16), or that an option allows it anyway."""
    if not supported and not forced:
        name = require_precision(spec.precision)
        raise BackendUnavailable(
            f"{spec.backend} finds no {name.upper()} instructions in this CPU (avx512_{name}, amx_{name}, or {name} on "
            f"Arm): it would emulate them, slower than FP32. To measure that anyway: {spec.backend}:force=1"
        )
