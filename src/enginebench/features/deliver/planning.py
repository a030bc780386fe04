"""Whether a configuration can be delivered, and with which options: `deliver` asks it, and so does what prints it."""

from pathlib import Path

from enginebench.core.errors import ArtifactError, EngineBenchError, UsageError
from enginebench.core.records import Artifact, Result
from enginebench.features.deliver.modules import check_module
from enginebench.features.deliver.writing import CPU, GPU, MODEL, choose_names, explain_refusal, find_versions
from enginebench.models.samples import SAMPLES, find_samples
from enginebench.report.run.deploy import Delivery
from enginebench.runs.bundles import check_name
from enginebench.runs.folder import RunFolder, RunRequest
from enginebench.runs.trust import find_opened, list_needed


def refuse_delivery(root: Path, request: RunRequest, result: Result) -> EngineBenchError | None:
    """Why a configuration of the run in `root` cannot be delivered; None if it can. Nothing is imported or hashed."""
    if reason := explain_refusal(result):
        return UsageError(reason)
    folder, place = RunFolder(root), find_opened(result)
    if place is None:
        return ArtifactError(f"the run keeps nothing of it that {result.engine.backend} could start from")
    artifact = result.artifacts[place]
    try:
        if not folder.artifacts.is_dir():
            return ArtifactError("the folder of the run holds results alone, without models; run it again")
        if gone := _list_gone(folder, request, result, artifact):
            return ArtifactError(f"the folder of the run lacks {', '.join(gone)}; run it again")
        if artifact.kind == "torch":
            check_module(artifact)
        else:
            for name in choose_names(artifact).values():
                check_name(f"{MODEL}/{name}")
    except EngineBenchError as error:
        return error
    runtime = (CPU if result.engine.device == "cpu" else GPU)[result.engine.backend].runtime
    if not find_versions(runtime, result.machine.versions if result.machine else {}):
        return ArtifactError(f"there is no record of which {runtime[0]} was measured; run it again")
    return None


def _list_gone(folder: RunFolder, request: RunRequest, result: Result, artifact: Artifact) -> list[str]:
    """The files, as named in the folder, that a bundle needs and that are not there."""
    model = Path(folder.absolute(artifact).path)
    paths = [model, *(model.parent / file.path for file in artifact.files), folder.find_outputs(result.id)]
    gone = [path.name for path in paths if not path.is_file()]
    if request.inputs is not None and find_samples(folder.artifacts) is None:
        gone.append(SAMPLES)
    return list(dict.fromkeys(gone))


def plan_delivery(root: Path, request: RunRequest, result: Result) -> Delivery:
    """What `deliver` says of a configuration: why it refuses it, or the options with which it takes it."""
    refusal = refuse_delivery(root, request, result)
    if refusal is not None:
        return Delivery(refusal=str(refusal))
    place = find_opened(result)
    assert place is not None  # else it is refused
    return Delivery(options=tuple(list_needed(result.artifacts[place], result.engine)))
