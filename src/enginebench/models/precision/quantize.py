"""Artifact to Artifact in another precision: cast, or with explicit Q/DQ nodes, and what came of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from msgspec import Struct
from msgspec.structs import replace
from onnx import ModelProto

from enginebench.core.commands import format_command
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.names import format_precision
from enginebench.core.recipes import FEW_BITS, RECIPES, find_needs, list_recipes, quantizes_weights_only
from enginebench.core.records import Artifact, Precision, Recipe, ResultWarning
from enginebench.core.shapes import carry_specs
from enginebench.core.text import list_some
from enginebench.core.warnings import make_warning
from enginebench.models.onnx.source import KEPT_KEY, describe_origin, read_metadata, read_onnx, read_precision
from enginebench.models.precision.calibrate import Observer, find_activations, observe_ranges
from enginebench.models.precision.calibration import Calibration, TensorRange, check_preprocess
from enginebench.models.precision.calibration_data import CalibrationData, make_fake
from enginebench.models.precision.cast import cast_to_bf16, cast_to_fp16, find_floats, find_overflowing, walk_graphs
from enginebench.models.precision.exclusion import resolve_exclusion
from enginebench.models.precision.graph import (
    has_quantizers,
    hash_weights,
    is_transformer,
    load_whole_graph,
    prepare_graph,
    raise_opset,
    read_versions,
    write_graph,
)
from enginebench.models.precision.macs import measure_coverage
from enginebench.models.precision.qdq import (
    CPU,
    CPU_TRANSFORMER,
    FP8_OPSET,
    TENSORRT,
    insert_quantizers,
    quantize_residuals,
    raise_dead_scales,
    release_excluded,
    release_outputs,
    turn_into_fp8,
    write_scalars,
)
from enginebench.models.precision.recipes import quantize_dynamically, quantize_weights, quantize_with_nncf
from enginebench.models.precision.tensorrt_check import refuse_what_tensorrt_refuses

IoTypes = Literal["keep", "cast"]

# Entries of random data that look for values which FP16 cannot hold, where there is no calibration.
OVERFLOW_ENTRIES = 4
# Below half of the work in 8 bits, a configuration named int8 is mostly something else.
LOW_COVERAGE = 0.5


# The coverage of the graphs that were written here, by the hash of their files: their warnings depend on it, and
# `enginebench quantize` shows it. It takes a second where a graph has 20,000 nodes.
_COVERAGE: dict[str, float] = {}


class _Change(Struct, frozen=True, kw_only=True, eq=False):
    """The result of a transform, and the remarks about it."""

    model: ModelProto
    kept_fp32: tuple[str, ...] = ()  # it was not requested
    excluded: tuple[str, ...] = ()  # as the user named them
    reason: str = ""
    tools: tuple[str, ...] = ("onnx", "onnxruntime")


def quantize(
    artifact: Artifact,
    to: Precision,
    recipe: Recipe | None,
    out: Path,
    *,
    calibration: Calibration | None = None,
    data: CalibrationData | None = None,
    io_types: IoTypes = "keep",
    reduce_range: bool = False,
    exclude: Sequence[str] = (),
    threads: int = 0,
) -> Artifact:
    """The artifact in another precision, written to `out`.

    A graph that holds Q/DQ nodes already goes through as it is: with its own recipe where it was made here, else "qat".

    Args:
        to: fp16, bf16, int8, fp8 or int4.
        recipe: of few bits, one of `core.recipes.RECIPES`; None is "tensorrt".
        calibration: ranges of the graph, where the recipe needs them; used by fp16 to find overflow.
        data: inputs of the graph; needed by nncf, which takes its own ranges.
        io_types: "keep" leaves inputs and outputs in FP32, "cast" gives them the new type. FP16 and BF16 only.
        reduce_range: recipe cpu with 7-bit weights, for x86 CPUs without VNNI, whose 8-bit products saturate.
        exclude: nodes of the graph, as it stands in the file, that stay in FP32.
        threads: of ONNX Runtime, where the graph must be run; 0 is its own choice.
    """
    if artifact.kind != "onnx":
        raise UsageError(
            f"{artifact.path} is of kind {artifact.kind}; precision is a property of an ONNX graph. Export it first"
        )
    model = load_whole_graph(Path(artifact.path))
    if has_quantizers(model):
        if exclude:
            raise UsageError(
                f"{artifact.path} holds Q/DQ nodes already, which --exclude cannot take away; quantize the FP32 graph"
            )
        return _pass_through(artifact, model, to, recipe, out)
    recipe = _check_request(artifact, to, recipe, io_types)
    if calibration is not None:
        _check_calibration(calibration, artifact, model)
    needs = find_needs(to, recipe)
    if needs == "data" and data is not None and calibration is None:
        check_preprocess(data, artifact.model, artifact.preprocess_sha256)  # the ranges come from them
    prepared = prepare_graph(model, artifact.operator_libraries, artifact.inputs)
    left_out = resolve_exclusion(exclude, model, prepared)
    if not any(map(find_floats, walk_graphs(prepared.graph))):
        raise UsageError(
            f"{artifact.path}: nothing in the graph is FP32; {format_precision(to, recipe)} is made from an FP32 graph."
            " Export the model in float32"
        )
    match to:
        case "fp16":
            change = _to_fp16(prepared, artifact, calibration, io_types, left_out, threads)
        case "bf16":
            cast, kept = cast_to_bf16(prepared, left_out, io_types == "keep")
            change = _Change(
                model=cast,
                kept_fp32=tuple(name for name in kept if name not in left_out),
                reason="ONNX has no BF16 form of their operators",
                tools=("onnx",),
            )
        case _:
            change = _to_eight_bits(prepared, to, recipe, calibration, data, reduce_range, left_out)
            change = replace(change, tools=RECIPES[recipe or "tensorrt"].tools)
    return _finish(artifact, replace(change, excluded=tuple(exclude)), to, recipe, out, calibration, data)


def _check_request(artifact: Artifact, to: Precision, recipe: Recipe | None, io_types: IoTypes) -> Recipe | None:
    """The recipe, or the default of the precision."""
    requested = format_precision(to, recipe)
    recipes = list_recipes(to)
    if to in ("fp32", "tf32"):
        why = "it is a setting of the engine" if to == "tf32" else "it is what the graph has"
        raise UsageError(f"{requested} is not a precision to quantize to: {why}. Known: fp16, bf16, int8, fp8, int4")
    if not recipes and recipe is not None:
        raise UsageError(f"{to} has no recipes; ask for {to} instead of {requested}")
    if recipes and recipe is not None and recipe not in recipes:
        raise UsageError(f"{requested} is unknown; recipes of {to}: {', '.join(recipes)}")
    if io_types == "cast" and recipes:
        raise UsageError(f"--io-types cast is for fp16 and bf16; inputs and outputs of {requested} stay FP32")
    if artifact.precision != "fp32":
        raise UsageError(f"{artifact.path} is {artifact.precision} already; {requested} is made from an FP32 graph")
    return recipe or recipes[0] if recipes else None


def _check_calibration(calibration: Calibration, artifact: Artifact, model: ModelProto) -> None:
    # Refuses ranges that no FP32 graph can have; a tensor or two that are always 0 are no fault.
    most, least = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
    largest = {name: tensor_range.largest for name, tensor_range in calibration.ranges.items()}
    if beyond := [name for name, value in largest.items() if value > most]:
        raise ArtifactError(
            f"the calibration has ranges that FP32 cannot hold, up to {max(largest.values()):.3g}: "
            f"{list_some(beyond)}. Calibrate the model again"
        )
    if largest and all(value < least for value in largest.values()):
        raise ArtifactError(
            f"all ranges of the calibration are 0, or too small for FP32: {list_some(list(largest))}. "
            "Calibrate the model again, with inputs that are not all 0"
        )
    check_preprocess(calibration, artifact.model, artifact.preprocess_sha256)
    weights_sha256 = calibration.weights_sha256
    if (
        weights_sha256 is not None
        and calibration.model_sha256 != artifact.sha256
        and weights_sha256 != hash_weights(model)
    ):
        raise ArtifactError(
            f"the calibration was made of {calibration.model}, whose weights are not those of {artifact.path}. "
            "Calibrate this model"
        )


def _pass_through(
    artifact: Artifact, model: ModelProto, to: Precision, requested: Recipe | None, out: Path
) -> Artifact:
    precision, recipe = read_precision(model)
    if to != precision or (recipe != "qat" and requested not in (None, recipe)):
        raise UsageError(
            f"{artifact.path} holds {format_precision(precision, recipe)} Q/DQ nodes already; "
            f"{format_precision(to, requested)} is made from an FP32 graph"
        )
    if requested == "tensorrt":
        write_scalars(model)
        refuse_what_tensorrt_refuses(model, artifact.path)
    kept = read_metadata(model).get(KEPT_KEY, "").splitlines()
    change = _Change(
        model=model,
        kept_fp32=tuple(kept),
        excluded=artifact.excluded,
        reason="they were left so when it was quantized",
        tools=("onnx",),
    )
    return _finish(artifact, change, precision, recipe, out, None, None)


def _to_fp16(
    prepared: ModelProto,
    artifact: Artifact,
    calibration: Calibration | None,
    io_types: IoTypes,
    left_out: Sequence[str],
    threads: int,
) -> _Change:
    ranges = calibration.ranges if calibration else {}
    # A few random entries show what overflows by orders of magnitude; an infinity that is meant is one in FP16, too.
    if not calibration and artifact.inputs and (watched := find_activations(prepared)):
        axis = next((spec.shape[0] for spec in artifact.inputs if spec.shape), None)
        data = make_fake(artifact.inputs, max(OVERFLOW_ENTRIES, axis if isinstance(axis, int) else 0), seed=0)
        observer = Observer(prepared, watched, threads, artifact.operator_libraries)
        observed, _ = observe_ranges(observer, data, OVERFLOW_ENTRIES)
        ranges = {name: TensorRange(low=low, high=high) for name, (low, high) in observed.items()}
    blocked = find_overflowing(prepared, ranges)
    cast, kept = cast_to_fp16(prepared, [*blocked, *left_out], io_types == "keep")
    kept = [name for name in kept if name in blocked or name not in left_out]
    reason = "their values overflow FP16" if blocked else "their operators are not safe in FP16"
    return _Change(model=cast, kept_fp32=tuple(kept), reason=reason)


def _to_eight_bits(
    prepared: ModelProto,
    to: Precision,
    recipe: Recipe | None,
    calibration: Calibration | None,
    data: CalibrationData | None,
    reduce_range: bool,
    left_out: Sequence[str],
) -> _Change:
    if recipe in ("nncf", "nncf:mixed", "smooth"):
        if data is None:
            raise UsageError(
                f"int8@{recipe} takes its ranges itself and needs the data: give --calib F.npz, which --keep-batches "
                "F.npz of enginebench calibrate writes"
            )
        return _Change(model=quantize_with_nncf(prepared, data, left_out, recipe))
    if recipe == "dynamic":
        return _Change(model=quantize_dynamically(prepared, left_out, reduce_range))
    if quantizes_weights_only(recipe):
        return _Change(model=quantize_weights(prepared, left_out, bits=4 if to == "int4" else 8))
    if calibration is None:
        raise UsageError(
            f"{format_precision(to, recipe)} needs ranges: --calib FILE. Make them with "
            + format_command("calibrate", "MODEL", options=[("--data", "DIR"), ("--out", "FILE")])
        )
    if recipe == "cpu":
        scheme = CPU_TRANSFORMER if is_transformer(prepared) else CPU
        made, left = insert_quantizers(
            prepared, calibration.ranges, scheme, reduce_range=reduce_range, exclude=left_out
        )
        release_excluded(made, left_out)
        release_outputs(made, prepared)
    else:
        prepared = raise_opset(prepared, FP8_OPSET) if to == "fp8" else prepared
        made, left = insert_quantizers(
            prepared, calibration.ranges, TENSORRT, per_channel=to == "int8", exclude=left_out
        )
        quantize_residuals(made, calibration.ranges, left_out)
        raise_dead_scales(made)
        if to == "fp8":
            turn_into_fp8(made)
    if recipe == "tensorrt":
        write_scalars(made)
        refuse_what_tensorrt_refuses(made, "the quantized graph")
    return _Change(
        model=made,
        kept_fp32=tuple(left),
        reason="they have no constant weight, or the calibration has no range for them",
    )


def _finish(
    artifact: Artifact,
    change: _Change,
    to: Precision,
    recipe: Recipe | None,
    out: Path,
    calibration: Calibration | None,
    data: CalibrationData | None,
) -> Artifact:
    """Write the changed graph with its origin in its metadata, and return it as an artifact."""
    source = data if find_needs(to, recipe) == "data" else calibration
    if to in FEW_BITS and not has_quantizers(change.model):
        raise ArtifactError(
            f"nothing in {artifact.path} could be quantized: 0 QuantizeLinear and 0 DequantizeLinear nodes. "
            "It has no convolution or matrix product with a constant weight and a known range"
        )
    coverage = measure_coverage(change.model, quantizes_weights_only(recipe)) if to in FEW_BITS else None
    warnings = _list_warnings(artifact, change, to, recipe, source, coverage)
    calibrated_on = source.preprocess_sha256 if source is not None and to in ("int8", "fp8") else None
    preprocess = calibrated_on if calibrated_on is not None else artifact.preprocess_sha256
    origin = artifact.made_with.get("calibration", "")
    if source is not None:
        count = f"{source.n} entries of " if source.n else ""
        origin = " over ".join(filter(None, (getattr(source, "method", ""), count + Path(source.source).name)))
    # Where it comes from, in the graph: the file may leave its run.
    metadata = read_metadata(change.model) | describe_origin(
        to,
        recipe,
        parent_sha256=artifact.sha256,
        preprocess_sha256=preprocess,
        warnings=warnings,
        kept_fp32=change.kept_fp32,
        excluded=change.excluded,
        calibration=origin,
    )
    onnx.helper.set_model_props(change.model, {key: value for key, value in metadata.items() if value})
    write_graph(change.model, out)
    made = read_onnx(out)
    if coverage is not None:
        _COVERAGE[made.sha256] = coverage
    return replace(
        made,
        model=artifact.model,
        inputs=carry_specs(artifact.inputs, made.inputs),
        outputs=carry_specs(artifact.outputs, made.outputs),
        precision=to,
        recipe=recipe,
        weights=artifact.weights,
        parent_sha256=artifact.sha256,
        preprocess_sha256=preprocess,
        normalize=artifact.normalize,
        made_by=read_versions(change.tools),
        operator_libraries=artifact.operator_libraries,
        excluded=change.excluded,
        warnings=warnings,
    )


def find_coverage(artifact: Artifact, model: ModelProto) -> float:
    """Return `measure_coverage` of the artifact's graph; of one that was written here it is known."""
    coverage = _COVERAGE.get(artifact.sha256)
    return measure_coverage(model, quantizes_weights_only(artifact.recipe)) if coverage is None else coverage


def _list_warnings(
    artifact: Artifact,
    change: _Change,
    to: Precision,
    recipe: Recipe | None,
    source: Calibration | CalibrationData | None,
    coverage: float | None,
) -> tuple[ResultWarning, ...]:
    """List the warnings of the graph and of its ranges, then what stayed in FP32 and how little is in few bits."""
    warnings = list(artifact.warnings)
    if coverage is not None:
        warnings += source.warnings if source else ()
        if coverage < LOW_COVERAGE:
            covered = "have operands in 8 bits"
            if find_needs(to, recipe) == "nothing":
                covered = "are products with constant matrices, all that this recipe changes"
                covered += " (int8@cpu and int8@nncf: convolutions, too)"
            operations = "multiply-accumulates"
            warnings.append(make_warning("low_coverage", share=coverage, operations=operations, covered=covered))
    if all(warning.code != "kept_fp32" for warning in warnings):
        kept = [("kept_fp32", change.reason, change.kept_fp32)]
        kept += [("excluded", "they are excluded", change.excluded)]
        for key, reason, names in kept:
            if names:
                listed = list_some(names)
                warnings.append(make_warning("kept_fp32", count=len(names), reason=reason, names=listed, key=key))
    return tuple(dict.fromkeys(warnings))
