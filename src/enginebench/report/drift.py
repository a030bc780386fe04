"""The document of `drift`, and its report in a few lines."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from enginebench.core.features import find_hooks
from enginebench.core.hooks import DriftSections
from enginebench.core.input_sets import name_set
from enginebench.core.records import Drift, EngineSpec, OutputDrift, ResultWarning
from enginebench.core.text import count_of
from enginebench.core.warnings import format_warning
from enginebench.report.located import Located
from enginebench.report.table import Section, list_texts, make_notes, make_table
from enginebench.stats.drift import LIMITS, SampleDrift

MISSING = "-"


class DriftSide(Struct, frozen=True, kw_only=True):
    """One side of the comparison."""

    text: str
    model: str
    engine: EngineSpec
    artifact_sha256: str


class DriftDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `drift`, also in `output_diff.json`. `gate`: the limits are the user's own.

    With fewer samples than requested it is not `passed`, whatever they show.
    """

    schema: str = "enginebench.drift/1"
    n: int  # samples for which both sides have outputs
    n_asked: int
    outputs: tuple[OutputDrift, ...]
    limits: dict[str, float]
    passed: bool
    gate: bool
    reference: DriftSide
    candidate: DriftSide
    inputs: str
    seed: int
    preprocess_sha256: str | None = None  # of the inputs; "external" for the user's own arrays
    exceeded: tuple[str, ...] = ()  # sentences: which limit of which output was not kept
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")
    undecided: dict[str, float] = {}  # always empty: until 0.9 outputs without decisions had limits of their own
    further: tuple[Drift, ...] = ()  # the same on made-up inputs that reach further
    located: Located | None = None  # by --locate


class SamplesDocument(Struct, frozen=True, kw_only=True):
    """The content of `per_sample_diff.json`."""

    schema: str = "enginebench.drift-samples/1"
    n: int
    samples: tuple[SampleDrift, ...]


def list_drift(document: DriftDocument) -> list[Section]:
    missing = "" if document.n >= document.n_asked else f" of {document.n_asked} that were asked for"
    sides = f"{document.candidate.text} against {document.reference.text}"
    figures = {label: [getattr(output, name) for output in document.outputs] for label, name in FIGURES.items()}
    shown = {label: values for label, values in figures.items() if any(value is not None for value in values)}
    lines = [(label, *map(_format_value, values)) for label, values in shown.items()]
    table = make_table(list_texts(["figure"], [output.name for output in document.outputs]), lines, file="drift")
    texts = [
        conclude_drift(document),
        *document.exceeded,
        *format_further(document.further),
        *map(format_warning, document.warnings),
    ]
    title = f"{sides}, {count_of(document.n, 'samples')}{missing}"
    further = [section for list_sections in find_hooks(DriftSections) for section in list_sections(document)]
    return [Section(title=title, parts=(*make_notes(texts), table)), *further]


def _format_value(value: float | None) -> str:
    if value is None:
        return MISSING
    return str(value) if isinstance(value, int) else f"{value:.6g}"


FIGURES = {
    "mean absolute difference": "mean_abs_diff",
    "largest absolute difference": "max_abs_diff",
    "mean relative difference": "mean_rel_diff",
    "cosine, mean": "cosine_mean",
    "cosine, smallest": "cosine_min",
    "centred cosine, mean": "centred_cosine_mean",
    "signal to noise, dB": "snr_db",
    "... that most samples keep": "snr_most_db",
    "top-1 agreement": "top1_agreement",
    "top-5 agreement": "top5_agreement",
    "other best class": "flips",
    "... not explained by noise": "flips_beyond_noise",
    "near ties": "near_ties",
    "decisions": "decided",
    "... that both take": "agreement",
    "values not finite, both sides": "nonfinite",
}


def conclude_drift(document: DriftDocument) -> str:
    limits = _list_limits(document.limits)
    if document.n < document.n_asked:
        return f"NOT passed: {document.n} of {document.n_asked} samples were compared ({limits or 'no limits'})."
    whose = "yours" if document.gate else "the usual ones of the shorter precision"
    return f"{'Within' if document.passed else 'NOT within'} the limits ({limits or 'none'}; {whose})."


def format_further(further: Sequence[Drift]) -> list[str]:
    """Format one sentence on the sets whose outputs are within the limits; the others are among the exceeded limits."""
    kept = [f"{name_set(one.inputs)} ({one.n})" for one in further if one.passed]
    return [f"Within the limits on further inputs, too: {'; '.join(kept)}."] if kept else []


def _list_limits(limits: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {'>=' if LIMITS[name][1] else '<='} {value:g}" for name, value in limits.items())
