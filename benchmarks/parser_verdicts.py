"""What NVIDIA's ONNX parser says of every graph in a folder: verdict and messages as one JSON file.

    python benchmarks/parser_verdicts.py FOLDER OUT.json [--module tensorrt] [--build] [--jobs 2] [--limit-s 120]

Asks the Python bindings of TensorRT (8.6 and later; they need a GPU) or of TensorRT for RTX (no GPU), and needs nothing
else than Python. Every file is read in a child process: one that ends it is a verdict, too, and the next file gets
another child. OUT.json is written anew after each file, so that a visit which is cut off loses nothing.

The claims of docs/tensorrt.md rest on this.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

MODULES = ("tensorrt", "tensorrt_rtx_bindings")
SCHEMA = "enginebench.parser_verdicts/1"
# Of the library's messages for one graph; some name every node.
LONGEST = 2000
ERROR_FIELDS = ("code", "desc", "func", "line", "node", "node_name", "node_operator")


class Child:
    """A process that answers for one file after another, until one of them ends it."""

    def __init__(self, module: str, build: bool, limit_s: float) -> None:
        self.limit_s = limit_s
        self.words = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        command = [sys.executable, str(Path(__file__).resolve()), "--child", module, *(["--build"] if build else [])]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.words, text=True
        )

    def ask(self, question: str) -> dict[str, Any]:
        """The answer to a line; what became of the process if it gave none."""
        assert self.process.stdin and self.process.stdout
        late = threading.Timer(self.limit_s, self.process.kill)
        late.start()
        try:
            print(question, file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        timed_out = not late.is_alive()
        late.cancel()
        if answer.endswith("\n"):
            return dict(json.loads(answer))
        code = self.close()
        if timed_out:
            return {"verdict": "timed out", "limit_s": self.limit_s, "stderr": self.read_words()}
        return {"verdict": "crashed", "exit_code": code, "stderr": self.read_words()}

    def read_words(self) -> str:
        """The last that it wrote to stderr."""
        self.words.seek(0)
        return self.words.read()[-LONGEST:]

    def close(self) -> int:
        """Its exit code, once it has ended."""
        assert self.process.stdin
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        return self.process.wait()


def open_child(module: str, build: bool, limit_s: float) -> tuple[Child, dict[str, Any]]:
    """A child that can make a builder, and what it says of the library."""
    child = Child(module, build, limit_s)
    library = child.ask("")
    if "version" not in library:
        raise SystemExit(f"{module} cannot make a builder here: {json.dumps(library)}")
    return child, library


def ask_all(paths: list[Path], names: list[str], out: Path, module: str, asked: argparse.Namespace) -> dict[str, Any]:
    """The document; `asked.jobs` children share the files."""
    first, library = open_child(module, asked.build, asked.limit_s)
    document: dict[str, Any] = {"schema": SCHEMA, "library": library, "built": asked.build, "graphs": {}}
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(paths)):
        waiting.put(index)
    lock = threading.Lock()

    def work(child: Child | None) -> None:
        while True:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                break
            child = child or open_child(module, asked.build, asked.limit_s)[0]
            start = time.perf_counter()
            answer = child.ask(str(paths[index]))
            answer["seconds"] = round(time.perf_counter() - start, 3)
            answer["sha256"] = hashlib.sha256(paths[index].read_bytes()).hexdigest()
            if answer["verdict"] in ("crashed", "timed out"):
                child = None
            with lock:
                document["graphs"][names[index]] = answer
                write(document, out)
        if child is not None:
            child.close()

    threads = [threading.Thread(target=work, args=(first if n == 0 else None,)) for n in range(asked.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return document


def write(document: dict[str, Any], out: Path) -> None:
    """Replaces the file whole, a line for each graph."""
    head = json.dumps({key: value for key, value in document.items() if key != "graphs"})
    graphs = (f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in sorted(document["graphs"].items()))
    part = out.with_name(out.name + ".part")
    part.write_text(f'{head[:-1]}, "graphs": {{\n' + ",\n".join(graphs) + "\n}}\n", encoding="utf-8")
    part.replace(out)


def serve(module: str, build: bool) -> None:
    """The child: a path a line, an answer a line; an empty line asks for the library's version."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the library prints to stdout on its own
    trt = import_module(module)

    class Log(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.lines: list[list[str]] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity in (levels.WARNING, levels.ERROR, levels.INTERNAL_ERROR):
                self.lines.append([str(severity).rpartition(".")[2].lower(), msg.strip()[:LONGEST]])

    levels = trt.ILogger.Severity
    log = Log()
    if hasattr(trt, "init_libnvinfer_plugins"):
        trt.init_libnvinfer_plugins(log, "")
    builder = None
    for line in sys.stdin:
        path = line.rstrip("\n")
        try:
            builder = builder or trt.Builder(log)  # one for all: in 8.6 the first takes 9 seconds
            found = judge(trt, log, builder, path, build) if path else introduce(trt)
        except Exception as error:  # the bindings raise where the library returns nothing
            found = {"verdict": "raised", "error": f"{type(error).__name__}: {error}"}
        found["log"] = log.lines[:50]
        log.lines.clear()
        print(json.dumps(found), file=answers, flush=True)


def introduce(trt: Any) -> dict[str, Any]:
    """Which library this is."""
    return {"module": trt.__name__, "version": str(trt.__version__), "python": sys.version.split()[0]}


def judge(trt: Any, log: Any, builder: Any, path: str, build: bool) -> dict[str, Any]:
    """Parses a graph, and builds it if that is asked for."""
    strict = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    flag = trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH if strict is None else strict
    network = builder.create_network(1 << int(flag))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(path):
        return {"verdict": "refused", "by": "parser", "errors": read_errors(parser)}
    found = {
        "verdict": "taken",
        "layers": network.num_layers,
        "inputs": describe(network.get_input(i) for i in range(network.num_inputs)),
        "outputs": describe(network.get_output(i) for i in range(network.num_outputs)),
    }
    if build and builder.build_serialized_network(network, configure(trt, builder, network)) is None:
        found |= {"verdict": "refused", "by": "builder"}
    return found


def read_errors(parser: Any) -> list[dict[str, Any]]:
    """What the parser says, as far as its version says it."""
    errors = [parser.get_error(i) for i in range(parser.num_errors)]
    return [
        {
            name: value if isinstance(value, int) and not hasattr(value, "name") else str(value)[:LONGEST]
            for name in ERROR_FIELDS
            if hasattr(error, name)
            for value in [getattr(error, name)()]
        }
        for error in errors
    ]


def describe(tensors: Any) -> dict[str, list[Any]]:
    """Name -> (type, shape); a shape that the library cannot tell is null."""
    found = {}
    for tensor in tensors:
        try:
            shape = list(tensor.shape)
        except ValueError:  # of a network whose shapes contradict each other
            shape = None
        found[tensor.name] = [str(tensor.dtype).rpartition(".")[2], shape]
    return found


def configure(trt: Any, builder: Any, network: Any) -> Any:
    """The least work of a builder, in every precision that it has; a dynamic axis is 1."""
    config = builder.create_builder_config()
    config.builder_optimization_level = 0
    if not hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED"):
        for name in ("FP16", "INT8", "FP8"):
            if hasattr(trt.BuilderFlag, name):
                config.set_flag(getattr(trt.BuilderFlag, name))
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    if any(-1 in tuple(tensor.shape) for tensor in inputs):
        profile = builder.create_optimization_profile()
        for tensor in inputs:
            shape = tuple(max(axis, 1) for axis in tensor.shape)
            profile.set_shape(tensor.name, shape, shape, shape)
        config.add_optimization_profile(profile)
    if hasattr(config, "num_compute_capabilities"):  # TensorRT for RTX builds for a GPU that need not be there
        config.num_compute_capabilities = 1
        config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    return config


def find_module() -> str:
    """The first of the modules that is installed."""
    for name in MODULES:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
        else:
            return name
    raise SystemExit(f"none of {', '.join(MODULES)} is installed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="with .onnx files, in folders of its own, too")
    parser.add_argument("out", type=Path, nargs="?", help="the JSON file to write")
    parser.add_argument("--module", help=f"the bindings to ask; by default the first of {', '.join(MODULES)}")
    parser.add_argument("--build", action="store_true", help="build what was parsed, too (seconds each)")
    parser.add_argument("--jobs", type=int, default=2, help="children at a time")
    parser.add_argument("--limit-s", type=float, default=120.0, help="for one file, and for the first builder")
    parser.add_argument("--child", metavar="MODULE", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        serve(asked.child, asked.build)
        return
    if asked.folder is None or asked.out is None:
        parser.error("FOLDER and OUT.json are needed")
    paths = sorted(asked.folder.rglob("*.onnx"))
    if not paths:
        raise SystemExit(f"{asked.folder} holds no .onnx file")
    names = [str(path.relative_to(asked.folder)) for path in paths]
    document = ask_all(paths, names, asked.out, asked.module or find_module(), asked)
    counts: dict[str, int] = {}
    for answer in document["graphs"].values():
        counts[answer["verdict"]] = counts.get(answer["verdict"], 0) + 1
    library = document["library"]
    print(
        f"{library['module']} {library['version']}: " + ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
    )


if __name__ == "__main__":
    main()
