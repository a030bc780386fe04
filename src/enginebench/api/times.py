"""`profile`, `stages` and `budget`: where the time goes."""

from __future__ import annotations

from collections.abc import Sequence

from enginebench.analyze.limits.layers import EngineProfileDocument
from enginebench.analyze.stages import StagesDocument
from enginebench.api import given
from enginebench.api.given import Model, PathLike, Shapes
from enginebench.fpga.budget import Budget
from enginebench.measure.pin import default_threads
from enginebench.verbs.progress import open_progress
from enginebench.workflow.verbs.budget import BudgetTerms, work_out_budget
from enginebench.workflow.verbs.profile import TIMED_S, profile_target
from enginebench.workflow.verbs.stages import measure_stages


def profile(
    target: Model,
    *,
    example_inputs: object = None,
    engine: str | None = None,
    precision: str = "fp32",
    batch: int | None = None,
    input_size: int | None = None,
    wait: bool = True,
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
    input_shape: Shapes | None = None,
    inputs: PathLike | None = None,
    ort_extension: PathLike | Sequence[PathLike] = (),
    weights: PathLike = "default",
    progress: bool | None = None,
) -> EngineProfileDocument:
    """Where the time of one engine goes, layer by layer, and what no layer explains.

    Args:
        target: a model as `run` takes it, or an engine file.
        example_inputs: of a module: a tensor as `forward` takes it, a tuple of them, or {parameter: tensor}.
        engine: ENGINE[:key=value,...]; by default ort, on a GPU ort-cuda.
        precision: fp32, tf32, fp16, bf16, int8 or fp8, with a recipe as in int8@cpu.
        batch: by default that of the example inputs or of `input_shape`, else 1.
        input_size: height and width of the model's images.
        wait: if another run holds the device, wait for it; else raise DeviceBusy.
        device: cpu or cuda:N.
        threads: of the engine; by default the physical cores.
        seed: of inputs, and of random weights.
        input_shape: {input: shape}, or texts as on the command line.
        inputs: your own: an .npz file, a folder of them, or package.module:function; by default made up.
        ort_extension: libraries of custom operators for ONNX Runtime, or the module onnxruntime_extensions.
        weights: default, random, or the file of a state dict.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        DependencyError: the engine cannot be had here, or cannot time its layers.
        ModelError: the model cannot be found, built or exported.
    """
    shared = given.read_shared(device, threads, seed, input_shape, weights, inputs, ort_extension)
    given.check(batch=batch, input_size=input_size)
    with given.take_model(target, example_inputs) as taken, open_progress(progress) as reporter:
        request = shared.make_row_request(
            taken.text,
            shared.name_engine(engine),
            precision,
            batch or (None if input_shape else taken.batch),
            time_limit_s=TIMED_S,
            input_size=input_size,
        )
        return profile_target(request, reporter=reporter, wait=wait).document


def stages(
    target: Model,
    *,
    engine: str = "pytorch",
    precision: str = "fp32",
    batch: int = 1,
    images: PathLike | None = None,
    n: int = 256,
    decoders: int | None = None,
    save_images: PathLike | None = None,
    time_limit: float = 3.0,
    input_size: int | None = None,
    wait: bool = True,
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
    input_shape: Shapes | None = None,
    inputs: PathLike | None = None,
    ort_extension: PathLike | Sequence[PathLike] = (),
    weights: PathLike = "default",
    progress: bool | None = None,
) -> StagesDocument:
    """Where the time goes from JPEG file to label: decode, resize, copy in, compute, copy out, top 5.

    Args:
        target: a model whose preprocessing is known: a built-in one or timm:NAME.
        engine: ENGINE[:key=value,...].
        precision: fp32, tf32, fp16, bf16, int8 or fp8, with a recipe as in int8@cpu.
        batch: pictures at a time.
        images: folder of JPEG files; by default photographs are made.
        n: pictures.
        decoders: threads that decode ahead; by default the physical cores.
        save_images: keep the pictures here.
        time_limit: seconds of each of the two measurements.
        input_size: height and width of the model's images.
        wait: if another run holds the device, wait for it; else raise DeviceBusy.
        device: cpu or cuda:N.
        threads: of the engine; by default the physical cores.
        seed: of the pictures, and of random weights.
        input_shape: {input: shape}, or texts as on the command line.
        inputs: your own: an .npz file, a folder of them, or package.module:function; by default made up.
        ort_extension: libraries of custom operators for ONNX Runtime, or the module onnxruntime_extensions.
        weights: default, random, or the file of a state dict.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        UsageError: the model's preprocessing is not known, or there are fewer pictures than a batch.
        DependencyError: the engine cannot be had here.
        ArtifactError: the pictures cannot be read.
    """
    shared = given.read_shared(device, threads, seed, input_shape, weights, inputs, ort_extension)
    given.check(batch=batch, n=n, decoders=decoders, time_limit=time_limit, input_size=input_size)
    with given.take_model(target) as taken, open_progress(progress) as reporter:
        request = shared.make_row_request(
            taken.text, engine, precision, batch, time_limit_s=time_limit, input_size=input_size
        )
        return measure_stages(
            request,
            images=given.to_path(images),
            n=n,
            decoders=decoders or default_threads(),
            save_images=given.to_path(save_images),
            reporter=reporter,
            wait=wait,
        )


def budget(
    *,
    t_pre_ms: float | None = None,
    t_copy_in_ms: float | None = None,
    t_compute_ms: float | None = None,
    t_copy_back_ms: float | None = None,
    t_post_ms: float | None = None,
    t_call_ms: float = 0.0,
    bytes_in: int | None = None,
    bytes_out: int | None = None,
    frame_bytes_in: int = 0,
    frame_bytes_out: int = 0,
    link: str | None = None,
    batch: int = 1,
    source: PathLike | None = None,
    baseline_ms: float | None = None,
    baseline_from: PathLike | None = None,
) -> Budget:
    """What an accelerator behind a link can bring: shares of the five terms of a call, speed-up, break-even points.

    Args:
        t_pre_ms: preprocessing of one item.
        t_copy_in_ms: copy of one item to the accelerator; or `bytes_in` with `link`.
        t_compute_ms: computation of one item.
        t_copy_back_ms: copy of one answer back; or `bytes_out` with `link`.
        t_post_ms: postprocessing of one item.
        t_call_ms: paid once a call, whatever the batch.
        bytes_in: of one item on its way in.
        bytes_out: of one answer on its way back.
        frame_bytes_in: once a call: header, checksum.
        frame_bytes_out: once an answer.
        link: uart:115200, usb2, usb3, eth100, eth1g, pcie3x4, or BYTES_PER_S+LATENCY_US; +usb[:MS].
        batch: items of one call.
        source: take terms from a stored row, or from a document of bench or stages (`--from`).
        baseline_ms: one item on what the accelerator would replace.
        baseline_from: the same from a stored result.

    Raises:
        UsageError: not one term is given, one of them twice, or one is negative.
        ParseError: a stored result cannot be read.
    """
    terms = BudgetTerms(
        t_pre_ms=t_pre_ms,
        t_copy_in_ms=t_copy_in_ms,
        t_compute_ms=t_compute_ms,
        t_copy_back_ms=t_copy_back_ms,
        t_post_ms=t_post_ms,
        t_call_ms=t_call_ms,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        frame_bytes_in=frame_bytes_in,
        frame_bytes_out=frame_bytes_out,
        link=link,
        batch=batch,
        source=given.to_path(source),
        baseline_ms=baseline_ms,
        baseline_from=given.to_path(baseline_from),
    )
    return work_out_budget(terms)
