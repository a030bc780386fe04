"""The README.md of a bundle: what it is, how to run it, what was measured, and what to be careful of."""

from collections.abc import Iterator

from enginebench.core.names import show_engine
from enginebench.core.shapes import concrete_shape, format_input_shapes, format_traffic
from enginebench.core.warnings import format_warning
from enginebench.report.markdown import escape
from enginebench.report.numbers import UNITS_PER_MS, choose_unit, format_range, format_significant
from enginebench.runs.bundles import Bundle


def format_readme(bundle: Bundle) -> str:
    """The text of README.md. Names come from the user's files: they are escaped."""
    spec = bundle.engine
    configuration = show_engine(spec.backend, bundle.precision, spec.recipe, spec.mix)
    lines = [
        f"# {escape(bundle.model)}: {escape(configuration)}",
        "",
        "A model with the engine, the settings and the code that were measured. It runs without EngineBench.",
        "",
        "```sh",
        "pip install -r requirements.txt",
        "python predict.py --check    # compares its outputs with the measured ones; exit code 0 or 1",
        "python predict.py --bench    # a median here, beside the measured one",
        "```",
        "",
        "In a program, with this folder on the Python path; import it before NumPy, since it sets thread variables:",
        "",
        "```python",
        "from predict import load",
        "",
        "predict = load()",
        f"outputs = predict({{{_format_inputs(bundle)}}})",
        "```",
        "",
        "| measured | |",
        "|---|---|",
        *(f"| {name} | {escape(value)} |" for name, value in _list_figures(bundle)),
        "",
    ]
    warnings = [f"- {escape(format_warning(warning))}" for warning in bundle.warnings]
    lines += ["Warnings of that measurement:", "", *warnings, ""] if warnings else []
    lines += ["`bundle.json` has all of it, with the SHA-256 of every file and where the model comes from.", ""]
    return "\n".join(lines)


def _format_inputs(bundle: Bundle) -> str:
    """`"input": array`; a name that no plain text literal holds is left to bundle.json."""
    names = [tensor.name for tensor in bundle.artifact.inputs]
    plain = all(name.isprintable() and not {'"', "\\", "`"} & {*name} for name in names)
    return ", ".join(f'"{name}": array' for name in names) if plain else "...: array"


def _list_figures(bundle: Bundle) -> Iterator[tuple[str, str]]:
    figures = bundle.figures
    unit = choose_unit([figures.p50_ms.value])
    yield "median", format_range(figures.p50_ms, f" {unit}", UNITS_PER_MS[unit])
    if figures.p99_ms is not None:
        yield "p99", f"{format_significant(figures.p99_ms.value * UNITS_PER_MS[unit])} {unit}"
    yield "trials", str(figures.processes)
    yield "on", bundle.machine_name
    yield "when", bundle.measured_utc[:10]
    if bundle.engine.traffic:
        yield "of the mean request of", format_traffic(bundle.engine.traffic)
    else:
        yield "batch and inputs", f"{bundle.engine.batch}; {_format_shapes(bundle)}"
    agree = {True: "within the limits", False: "NOT within the limits", None: "not compared"}
    yield "outputs against the reference of the run", agree[figures.outputs_agree]


def _format_shapes(bundle: Bundle) -> str:
    inputs = bundle.artifact.inputs
    return format_input_shapes({tensor.name: concrete_shape(tensor, bundle.engine.batch) for tensor in inputs})
