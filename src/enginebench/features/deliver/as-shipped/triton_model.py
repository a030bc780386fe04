"""The bundle beside this file as a model of Triton's Python backend: the bundle's own program computes the outputs."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import facts  # after the path to it is known

# isort: split
import predict
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The class that Triton calls."""

    def initialize(self, args: dict[str, Any]) -> None:
        self._predict = predict.load()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return a response for each request, one after the other, as in the measurement."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        names = [spec["name"] for spec in facts.BUNDLE["artifact"]["inputs"]]
        try:
            feeds = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in names}
            outputs = self._predict(feeds)
        except Exception as error:  # one bad request must not end the server
            return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(name, a) for name, a in outputs.items()])
