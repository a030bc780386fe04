"""Whether a configuration can be delivered, and with which options: `deliver` asks it, and so does what prints it."""

from pathlib import Path

from enginebench.core.errors import ArtifactError, EngineBenchError, UsageError
from enginebench.core.records import Artifact, Result
from enginebench.features.deliver.modules import check_module
from enginebench.features.deliver.writing import CPU, GPU, MODEL, choose_names, explain_refusal, find_versions
from enginebench.models.file_kind import find_file_content
from enginebench.models.samples import SAMPLES, find_samples
from enginebench.report.run.deploy import Delivery
from enginebench.runs.bundles import check_name
from enginebench.runs.folder import RunFolder, RunRequest, format_resume
from enginebench.runs.trust import find_opened, list_needed

# The class of such weights in a file of torch.save. Source: PyTorch 2.13, torch/storage.py.
BFLOAT16 = "torch.BFloat16Storage"


def refuse_delivery(root: Path, request: RunRequest, result: Result) -> EngineBenchError | None:
    """Return why a configuration of the run in `root` cannot be delivered, by its files alone; None if it can."""
    if reason := explain_refusal(result):
        return UsageError(reason)
    folder, opened = RunFolder(root), find_opened(result)
    if result.status == "partial":
        return UsageError(_explain_partial(folder))
    if opened is None:
        return ArtifactError(f"the run keeps nothing of it that {result.engine.backend} could start from")
    artifact = result.artifacts[opened]
    try:
        if not folder.artifacts.is_dir():
            return ArtifactError("the folder of the run holds results alone, without models; run it again")
        if gone := _list_gone(folder, request, result, artifact):
            return ArtifactError(f"the folder of the run lacks {', '.join(gone)}; run it again")
        if artifact.kind == "torch":
            check_module(artifact)
            if reason := _explain_weights(Path(folder.absolute(artifact).path), artifact.model):
                return ArtifactError(reason)
        else:
            for name in choose_names(artifact).values():
                check_name(f"{MODEL}/{name}")
    except EngineBenchError as error:
        return error
    runtime = (CPU if result.engine.device == "cpu" else GPU)[result.engine.backend].runtime
    if not find_versions(runtime, result.machine.versions if result.machine else {}):
        return ArtifactError(f"there is no record of which {runtime[0]} was measured; run it again")
    return None


def _explain_partial(folder: RunFolder) -> str:
    """Return that the run was not finished, with the command that continues it."""
    record = folder.read_record()
    if record.verb == "bench":
        return "it has not all of its trials; measure it again"
    return f"the run is not finished. To finish it: {format_resume(record.verb, record.request, folder.root)}"


def _explain_weights(path: Path, model: str) -> str:
    """Return why the weights of a module cannot be the plain arrays of a bundle; "" if they can."""
    pickled = find_file_content(path).pickled
    if pickled is None:
        return ""
    if pickled.foreign is not None:
        return (
            f"{model} has weights of {pickled.foreign}, and a bundle of PyTorch holds plain arrays. Deliver another "
            "engine, or run the module as it was before it was quantized: EngineBench quantizes it, too"
        )
    if BFLOAT16 in pickled.classes:
        return f"{model} has weights in torch.bfloat16, which NumPy lacks. Keep them in FP32 and run bf16"
    return ""


def _list_gone(folder: RunFolder, request: RunRequest, result: Result, artifact: Artifact) -> list[str]:
    """The files, as named in the folder, that a bundle needs and that are not there."""
    model = Path(folder.absolute(artifact).path)
    paths = [model, *(model.parent / file.path for file in artifact.files), folder.find_outputs(result.id)]
    gone = [path.name for path in paths if not path.is_file()]
    if request.inputs is not None and find_samples(folder.artifacts) is None:
        gone.append(SAMPLES)
    return list(dict.fromkeys(gone))


def plan_delivery(root: Path, request: RunRequest, result: Result) -> Delivery:
    """Return why `deliver` refuses a configuration, or the options with which it takes it."""
    refusal = refuse_delivery(root, request, result)
    if refusal is not None:
        return Delivery(refusal=str(refusal))
    opened = find_opened(result)
    assert opened is not None  # else it is refused
    return Delivery(options=tuple(list_needed(result.artifacts[opened], result.engine)))
