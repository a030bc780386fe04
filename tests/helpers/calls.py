"""One call of an engine, of ONNX Runtime, or of the command line."""

import json
from typing import Any

# Options of a measurement that nobody looks at the figures of.
FAST = ("--warmup", "2", "--iters", "20", "--processes", "1")


def run_on(engine: Any, feeds: Any) -> dict[str, Any]:
    """The outputs of one run on these arrays."""
    engine.bind(feeds)
    engine.run()
    found: dict[str, Any] = engine.fetch()
    return found


def answer_as_ort(path: Any, feeds: Any) -> dict[str, Any]:
    """What ONNX Runtime, left to its own settings, answers to a graph."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def succeed(cli: Any, *arguments: object, **how: Any) -> Any:
    """The process of a command line that ended well."""
    return cli(*arguments, code=0, **how)


def read_document(cli: Any, *arguments: object, **how: Any) -> Any:
    """The JSON that a command line printed, which ended well."""
    return json.loads(succeed(cli, *arguments, **how).stdout)


def ask(cli: Any, *arguments: object) -> Any:
    """As `read_document`, of a command without its `--json`."""
    return read_document(cli, *arguments, "--json")


def bench(cli: Any, *arguments: object) -> Any:
    return ask(cli, "bench", *arguments, *FAST)
