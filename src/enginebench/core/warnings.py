"""Every warning about a number: its sentence, and how several are joined to one."""

import string
from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.commands import format_command, list_own_options
from enginebench.core.records import Figure, ResultWarning, WarningCode
from enginebench.core.text import clean_lines, list_or


class Template(Struct, frozen=True):
    """The text of a warning; `{figure}` and `{figure:format}` stand for its figures, or for the range of several.

    `{options}` in an advice stands for those of `options` that the verb at work has; where it has none of them, the
    advice is `otherwise`. `page`, in docs/, explains what the warning is about.
    """

    message: str
    advice: str
    page: str
    options: tuple[str, ...] = ()
    otherwise: str = ""


_CHECK_PRECISION = "read the label as what was requested, not as what ran"

# Name -> template. What stands before the dot is the code, which is all that other programs need to know.
TEMPLATES: dict[str, Template] = {
    "beats_bound": Template(
        "{what} is shorter than {limit} allow: the bound is {share:.0%} of it",
        "the bound or the time is wrong: measure both again on an idle machine; peaks come from enginebench roofline, "
        "without --quick",
        "roofline.md",
    ),
    "builds_differ": Template(
        "{builds} builds of this engine differ by {between:.1%} (95% interval {low:.1%} to {high:.1%}), beside "
        "{within:.1%} between processes of one build",
        "never compare one build with one build; compare several of both sides ({options}), and keep the best",
        "how-we-measure.md",
        ("--builds",),
        "never compare one build with one build; compare several of both sides, and keep the best",
    ),
    "call_overhead": Template(
        "the call through Python takes {share:.0%} of the median",
        "use a larger {options}, or call this engine from C or C++",
        "how-we-measure.md",
        ("--batch", "--max-batch"),
        "call this engine from C or C++",
    ),
    "checked_by_evaluator": Template(
        "ONNX Runtime cannot run this graph on a CPU ({why}); it was checked with onnx's reference evaluator",
        "other engines may run it; where only a type is missing, give the model in FP32 (module.float(), no casts), "
        "since graphs in other precisions are made of it",
        "how-we-measure.md",
    ),
    "chosen_shapes": Template(
        "no input shapes were given; chosen from {source}: {shapes}",
        "give yours: --input-shape {option}, or --inputs",
        "inputs.md",
    ),
    "chosen_shapes.refused": Template(
        "the graph has dynamic axes; {shapes} was chosen, and failed on the CPU: {why}",
        "give lengths that it takes with --input-shape {option}, or --inputs",
        "inputs.md",
    ),
    "clock_drift": Template(
        "{what} differed between trials by a factor of {ratio:.2f}: lowest {low:.4g}, highest {high:.4g} {unit}",
        "fix the clocks, or measure on a machine of your own",
        "how-we-measure.md",
    ),
    "constant_answers": Template(
        "the reference's outputs for {n} inputs hardly differ, so agreement shows little",
        "give trained weights or real inputs: {options}",
        "how-we-measure.md",
        ("--weights", "--inputs", "--data"),
        "give trained weights, or real inputs",
    ),
    "cut_short": Template(
        "the load ended after {came} of {planned} requests: {reason}", "what was measured until then is kept", "load.md"
    ),
    "disturbed_profile": Template(
        "under the profiler the kernels took {factor:.2f} times the run that was timed",
        "percentages by precision and layer are rough, since others may have used the GPU. Profile it alone",
        "how-we-measure.md",
    ),
    "enqueue_bound": Template(
        "the GPU waits for the host: enqueueing takes {share:.0%} of the device time",
        "use a CUDA graph (pytorch-cudagraph, pytorch-compile:cuda_graph=1, trtexec:graph=1) or a larger {options}",
        "gpu.md",
        ("--batch", "--max-batch"),
        "use a CUDA graph (pytorch-cudagraph, pytorch-compile:cuda_graph=1, trtexec:graph=1)",
    ),
    "environment.not_pinned": Template(
        "the process could not be pinned to its CPUs",
        "on Linux, allow sched_setaffinity; elsewhere expect more spread",
        "how-we-measure.md",
    ),
    "environment.setting": Template("the {setting} is {value}: {effect}", "{cure}", "how-we-measure.md"),
    "environment.suboptimal_plan": Template(
        "TensorRT for RTX calls the plan suboptimal on this GPU",
        "build it again, with the GPU's own compute capability among those of `build --compute-capability`",
        "tensorrt-rtx.md",
    ),
    "environment.tools": Template(
        "{what} is {theirs} in trtexec and {mine} in tensorrt", "compare {alike}", "tensorrt.md"
    ),
    "environment.torchvision": Template(
        "torchvision's own operators do not load with this PyTorch; those of detectors run in Python",
        "this makes PyTorch slower than necessary; install the torchvision built for it",
        "models.md",
    ),
    "eval_mode": Template(
        "the module came in train mode and was put into eval mode, in which its layers differ: {layers}",
        "call its eval() before you hand it over",
        "models.md",
    ),
    "external_preprocess": Template(
        "{what}: it is unknown whether inputs are preprocessed the same way at inference",
        "make sure that they are, or calibrate from images: "
        + format_command("calibrate", "MODEL", options=[("--data", "DIR"), ("--out", "calib.json")]),
        "inputs.md",
    ),
    "external_preprocess.twice": Template(
        "with --input-dtype uint8 the graph normalizes, and goes on with {operator}: it may have done so already",
        "if it has, give what it expects: --normalize 0,0,0/1,1,1 for 0 to 1, or 0.0039216 for each std for 0 to 255",
        "inputs.md",
    ),
    "failed_proof": Template(
        "requested {asked}; the record that would verify it failed: {failure}",
        f"{_CHECK_PRECISION}; times and outputs do not depend on it",
        "which-precision.md",
    ),
    "foreign_cpu": Template(
        "other programs used the CPU during {share:.0%} of the samples",
        "stop them, or measure again at a quiet time",
        "how-we-measure.md",
    ),
    "foreign_gpu": Template(
        "other programs used the GPU during {share:.0%} of the samples",
        "stop them (nvidia-smi lists them), or measure again at a quiet time",
        "gpu.md",
    ),
    "failed_requests": Template(
        "{failed} of {offered} requests failed: {reason}",
        "they count as the slowest; look for the reason first",
        "load.md",
    ),
    "generator_late": Template(
        "the generator was {late_ms:.2g} ms late at p99, more than 1% of {what} ({bound_ms:.3g} ms)",
        "leave it a core of its own: fewer --threads or --streams, or stop what else runs",
        "load.md",
    ),
    "implausible_time.bound": Template(
        "no correct engine is so fast: {share:.0%} of the calls are shorter than {least_ms:.2g} ms, which is the least "
        "that this processor needs in {precision} (median {median_ms:.2g} ms)",
        "the engine does not do the work of the model in each call: enginebench.testing.check_backend looks for where",
        "how-we-measure.md",
    ),
    "implausible_time.outputs": Template(
        "after the timed calls, other inputs gave outputs that are not theirs: off by {share:.2g} of the largest value",
        "the engine stops computing after some calls; enginebench.testing.check_backend looks for after how many",
        "how-we-measure.md",
    ),
    "implausible_time.outside_run": Template(
        "the work is done where the inputs are bound, or where the outputs are fetched: {evidence}",
        "the engine must compute in run: enginebench.testing.check_backend shows it; measure it with {options} io "
        "until then",
        "how-we-measure.md",
        ("--scope",),
        "the engine must compute in run: enginebench.testing.check_backend shows it",
    ),
    "implausible_time.repeated": Template(
        "calls on new inputs take at least {first_ms:.2g} ms, many repeated ones {again_ms:.2g} ms: work is skipped",
        "only the time on new inputs is that of the model: measure it with {options} io",
        "how-we-measure.md",
        ("--scope",),
        "only the time on new inputs is that of the model",
    ),
    "kept_fp32": Template(
        "nodes that stay in FP32, as {reason}: {count} ({names})",
        "the file's metadata, enginebench.{key}, lists all of them",
        "quantization.md",
    ),
    "log_disagrees.median": Template(
        "the log prints a median {what} of {printed_ms:g} ms, the exported times give {computed_ms:g} ms",
        "the exported times are used; are log and times of the same run?",
        "trtexec.md",
    ),
    "log_disagrees.switch": Template(
        "requested {switch} {asked}; the log reports {seen}",
        "an argument of your own may overrule it; a CUDA graph fails on operations that cannot be captured: time such "
        "a model with graph=0 on every side",
        "trtexec.md",
    ),
    "lost_variance": Template(
        "output {output}: {lost} of {of} slices of axis {axis} hardly vary, and do in the reference",
        "their information is lost: keep the layers behind them in a wider precision",
        "metrics.md",
    ),
    "low_coverage": Template(
        "{share:.0%} of the {operations} {covered}; the rest runs in floats",
        "do not expect a speed-up: see which nodes stay in FP32, or take another recipe or engine",
        "quantization.md",
    ),
    "low_effective_precision": Template(
        "{record}",
        "see which operators stay out of {asked}; try another setting, recipe or engine",
        "which-precision.md",
    ),
    "low_effective_precision.given_up": Template(
        "{count} of {total} products with Q/DQ nodes on both sides are planned in floats: {names}",
        "give scales of activations as scalars; some operators (ConvTranspose) have no kernel in 8 bits at all",
        "which-precision.md",
    ),
    "modelled": Template(
        "the latency is modelled: simulated cycles at the clock, plus the link ({board})",
        "not a measurement; outputs and accuracy are those of the design",
        "fpga.md",
    ),
    "not_watched": Template(
        "{unseen} could not be watched: {why}",
        "make sure that nothing else runs; a GPU needs pip install nvidia-ml-py, and in a container --pid=host",
        "gpu.md",
    ),
    "no_layer_times": Template(
        "the engine's profiler gave no layer times: {failure}",
        "times, outputs and precision do not depend on it",
        "how-we-measure.md",
    ),
    "noisier_than_usual": Template(
        "noisier than {precision} usually is: {found}",
        "accepted all the same: compare accuracy with {options}, or take a wider precision",
        "how-we-measure.md",
        ("--data",),
        "accepted all the same: compare accuracy, or take a wider precision",
    ),
    "nonfinite": Template(
        "not finite: {count} {what}",
        "look for the cause, unless it is intended; in a model `drift` shows where, and a wider precision holds more",
        "how-we-measure.md",
    ),
    "no_score": Template("no score: {reason}", "without one it is not recommended", "metrics.md"),
    "not_settled.cold_start": Template(
        "the engine was still warming up during {share:.0%} of the samples",
        "raise {options}",
        "how-we-measure.md",
        ("--warmup",),
        "let it run longer before it is timed",
    ),
    "not_settled": Template(
        "latency had not settled {when}",
        "raise {options}, or fix the clocks",
        "how-we-measure.md",
        ("--time-limit", "--time-budget"),
        "measure longer, or fix the clocks",
    ),
    "not_settled.warmup": Template(
        "latency had not settled after warm-up in {unsettled} of {total} trials",
        "raise {options}",
        "how-we-measure.md",
        ("--warmup",),
        "let it run longer before it is timed",
    ),
    "optimizer_changes.export": Template(
        "ONNX Runtime's optimizer changes the outputs of this graph, which is right: {where} by {share:.2g} of the "
        "largest value",
        "ort:opt=none keeps them",
        "how-we-measure.md",
    ),
    "outputs_differ": Template(
        "the plan's outputs differ from those of {reference}: {found}",
        "compare them on real inputs (enginebench drift); where ranges were given or taken, calibrate on real inputs",
        "how-we-measure.md",
    ),
    "outputs_not_compared.further": Template(
        "{row} refuses {inputs}, which the reference takes: {why}",
        "check whether your inputs can be such ones",
        "how-we-measure.md",
    ),
    "outputs_differ.optimizer": Template(
        "onnxruntime's {cause} this graph's outputs; {kept} keeps them",
        "use {kept}, or another engine",
        "how-we-measure.md",
    ),
    "outputs_differ.engine": Template(
        "the exported graph gives PyTorch's outputs with {tool}: {engine} is at fault, not the export",
        "use another engine, or a lower optimization level of this one",
        "how-we-measure.md",
    ),
    "outputs_differ.export": Template(
        "the exported graph differs from PyTorch even with {tool}: the export is at fault, not {engine}",
        "write that part of the model in other operators, or export it with another --opset",
        "how-we-measure.md",
    ),
    "outputs_not_compared.unoptimized": Template(
        "outputs were compared with those of {reference}, since nothing computes the graph as it stands ({why})",
        "an error that all engines share does not show; compare with the framework that the graph comes from",
        "how-we-measure.md",
    ),
    "outputs_not_compared": Template(
        "outputs were not compared with those of {reference}: {why}",
        "compare models with the same inputs and outputs; a missing operator can be given with {options}",
        "how-we-measure.md",
        ("--ort-extension",),
        "compare models with the same inputs and outputs",
    ),
    "outputs_vary": Template(
        "{row} gives different outputs for the same inputs: by {share:.2g} of the largest value",
        "outputs cannot be judged: look for dropout that is left on, or random numbers in the model",
        "how-we-measure.md",
    ),
    "overload": Template(
        "of {offered} requests, {dropped} were rejected or not started in time{late}",
        "the rate is beyond what this engine carries: lower --qps, or look for the rate with --find-capacity",
        "load.md",
    ),
    "partly_compared": Template(
        "{what} on {n} of {asked} samples",
        "enginebench drift, or accuracy, compares two engines on as many as --n says, if the data has them",
        "how-we-measure.md",
    ),
    "random_calibration": Template(
        "8-bit ranges come from {source}, so times are valid, and accuracy and drift mean nothing",
        "{cure}",
        "quantization.md",
    ),
    "random_inputs": Template("outputs were compared on random inputs (seed {seed})", "{cure}", "inputs.md"),
    "random_weights": Template(
        "weights are random, seed {seed} ({reason})",
        "give {options} FILE",
        "models.md",
        ("--weights",),
        "give trained ones",
    ),
    "relabelled": Template(
        "{record} Reported as {ran}",
        "compare it with {ran}; another setting, recipe or engine may run in {asked}, if the graph itself allows it",
        "which-precision.md",
    ),
    "rewritten_graph": Template(
        "the engine does not read this graph as it is ({operator}): it ran one that was rewritten for these shapes",
        "a bundle cannot do that: deliver one of ort, or export the model without this operator",
        "engines.md",
    ),
    "rounding_dominates": Template(
        "rounding changes the outputs {where}: those of PyTorch, in FP32 or with such noise on weights and layers, by "
        "{own:.2g} of the largest value, and those of the graph by {share:.2g}",
        "no two engines will agree there; compute the steps that lose digits in FP64, or in another order",
        "how-we-measure.md",
    ),
    "several_machines": Template(
        "its trials come from {count:.0f} machines of one kind, since the sweep was resumed elsewhere",
        "medians include the difference between the machines; ratios compare only trials of the same machine, "
        "and omit the round that both began",
        "fleet.md",
    ),
    "shared_cores": Template(
        "generator and engine share {cores} cores and slow each other down",
        "leave the generator a core of its own: fewer --threads or --streams",
        "load.md",
    ),
    "state_restored": Template(
        "the module writes into its buffers in forward: {buffers}",
        "here every call starts from their initial values, as in the ONNX graph; state that must persist belongs in "
        "inputs and outputs",
        "models.md",
    ),
    "throttled": Template(
        "{what} during {share:.0%} of the samples",
        "let it cool, lower the load, fix the clocks, or choose a higher power mode; then measure again",
        "how-we-measure.md",
    ),
    "too_few_samples": Template(
        "{n} {units} are too few for p{percentile}, which needs {needed}",
        "raise {options}",
        "how-we-measure.md",
        ("--time-limit", "--iters", "--processes", "--duration", "--qps"),
        "measure longer",
    ),
    "too_few_trials": Template(
        "measured in {n} of the {needed} trials that a verdict needs",
        "{options} {needed} or more",
        "how-we-measure.md",
        ("--processes",),
        "measure {needed} trials or more",
    ),
    "uneven_processes": Template(
        "the same engine twice: even and odd trials differ by {difference:.1%}",
        "look for what disturbs the machine",
        "how-we-measure.md",
    ),
    "unread_boxes": Template(
        "output {output} looks like a detector's boxes; it was compared as numbers",
        "give {options} detection: then boxes are matched as a user sees them",
        "metrics.md",
        ("--task",),
        "compare it as detection: then boxes are matched as a user sees them",
    ),
    "unsteady": Template(
        "on average {in_system:.3g} requests were in the system, where Little's law expects {expected:.3g}: the queue "
        "was not steady",
        "raise --duration; if that changes nothing, the rate is beyond what this engine carries",
        "load.md",
    ),
    "unnamed_precision": Template(
        "{what}; no precision here is named after that: reported as {precision}",
        "engines differ in what they compute it in (OpenVINO: FP64 in FP32): compare size and outputs with those of "
        "the model in FP32",
        "engines.md",
    ),
    "unproved_precision": Template("requested {asked}, not verified: {why}", _CHECK_PRECISION, "which-precision.md"),
    "unproved_precision.plan": Template(
        "in which precision this plan was built is not known, and no record shows in which it ran",
        "give --precision; a plan that enginebench build writes has it in a file beside it",
        "which-precision.md",
    ),
    "unverified_engine.rtx": Template(
        "this engine has built plans with NVIDIA's own TensorRT for RTX, and has run none on a GPU that it supports",
        "compare it with another engine before you rely on it",
        "tensorrt-rtx.md",
    ),
    "work_outside_run": Template(
        "run leaves {share:.0%} of its work to the fetch of the outputs, which is not timed",
        "the engine must return from run when its outputs are complete: enginebench.testing.check_backend shows it; "
        "measure it with {options} io until then",
        "add-an-engine.md",
        ("--scope",),
        "the engine must return from run when its outputs are complete: enginebench.testing.check_backend shows it",
    ),
}

# Added to a warning that only some trials of a configuration have.
_OF_PROCESSES = " ({in_processes} of {of_processes} trials)"


# From here on an exponent reads better than all digits.
PLAIN = 1e7


def _format_figure(value: object, spec: str) -> str:
    """Format a figure of a sentence: 320 in two digits is 320, where Python writes 3.2e+02."""
    text = format(value, spec)
    return f"{float(text):.0f}" if "e+" in text and isinstance(value, float) and value < PLAIN else text


class _Formatter(string.Formatter):
    """Puts figures into a template, as `_format_figure` writes them."""

    def format_field(self, value: object, format_spec: str) -> str:
        return _format_figure(value, format_spec)


_FORMATTER = _Formatter()


class _Range:
    """The range of figures of several configurations, written once where both ends look alike: "1 to 5%"."""

    def __init__(self, values: Sequence[float]) -> None:
        self.low, self.high = min(values), max(values)

    def __format__(self, spec: str) -> str:
        low, high = _format_figure(self.low, spec), _format_figure(self.high, spec)
        if low == high:
            return low
        return f"{low.removesuffix('%')} to {high}"


def make_warning(template: str, **figures: Figure) -> ResultWarning:
    """The warning of that name, as a sentence and as the figures in it."""
    entry = TEMPLATES[template]
    message, advice = _word(entry, figures)
    code = cast("WarningCode", template.partition(".")[0])
    return ResultWarning(code=code, message=message, advice=advice, template=template, figures=figures)


def limit_to_processes(warning: ResultWarning, count: int, total: int) -> ResultWarning:
    """Return the warning with the note that only `count` of `total` trials have it."""
    figures: dict[str, Figure] = {"in_processes": count, "of_processes": total}
    return replace(
        warning, message=warning.message + _OF_PROCESSES.format(**figures), figures={**warning.figures, **figures}
    )


def find_sentence(warning: ResultWarning) -> tuple[object, ...]:
    """Return a key, equal for warnings that `format_warning` can join: they differ in their numbers alone.

    A warning without figures, such as older versions stored, is like those of the same words.
    """
    if not _has_present_words(warning):
        return warning.code, warning.message, warning.advice
    words = ((name, None if isinstance(value, int | float) else value) for name, value in warning.figures.items())
    return warning.template, *sorted(words)


def _has_present_words(warning: ResultWarning) -> bool:
    """Whether the template makes the warning's words; of another version it may lack figures, or say it otherwise."""
    template = TEMPLATES.get(warning.template)
    if template is None:
        return False
    try:
        return _word(template, warning.figures) == (warning.message, warning.advice)
    except (LookupError, ValueError):
        return False


def format_warning(warning: ResultWarning, *alike: ResultWarning) -> str:
    """Format what was seen and what to do, as tables, pages and terminals print it; several with their ranges."""
    return format_kinds([(warning, *alike)])


def format_kinds(kinds: Sequence[Sequence[ResultWarning]]) -> str:
    """Format one sentence on warnings of several kinds: first what was seen, then what to do."""
    messages, advices = zip(*map(_word_alike, kinds), strict=True)
    message, advice = (", and ".join(dict.fromkeys(filter(None, texts))) for texts in (messages, advices))
    return clean_lines(f"{message.rstrip('.')}; {advice}" if advice else message)


def _word_alike(alike: Sequence[ResultWarning]) -> tuple[str, str]:
    first = alike[0]
    if len(alike) == 1 or not first.figures or not _has_present_words(first):
        return first.message, first.advice
    ranges: dict[str, object] = {  # each figure over all of them; a text as it stands in the first
        name: _Range([cast("float", one.figures[name]) for one in alike]) if isinstance(value, int | float) else value
        for name, value in first.figures.items()
    }
    return _word(TEMPLATES[first.template], ranges)


def _word(template: Template, figures: Mapping[str, object]) -> tuple[str, str]:
    """(what was seen, what to do), with the figures in their places."""
    of_processes = _OF_PROCESSES if "in_processes" in figures else ""
    own, advice = list_own_options(template.options), template.advice
    if template.options and not own:
        advice = template.otherwise
    message = _FORMATTER.vformat(template.message + of_processes, (), figures)
    return message, _FORMATTER.vformat(advice, (), {**figures, "options": list_or(own)})
