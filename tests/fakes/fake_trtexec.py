"""A stand-in for trtexec: versions by the table in `trtexec_versions.json`, answers through ONNX Runtime.

It parses, refuses, prints and exports as the open-source trtexec of that version does; its library messages, layers and
times are its own, but those of 8.6.0, which are worded as NVIDIA's library words them (`../data/tensorrt-8.6`).
`FAKE_TRTEXEC_FAULT` asks for a fault, a comma-separated list of:
build_fails, empty_plan, no_driver, no_device, capture_fails, aborts, device_fault, wrong_version, silent_export,
ignores_precision, ignores_tf32, no_passed, log_disagrees, enqueue_bound, profile_faults, profile_aborts, hangs,
no_library, weights, not_ready (in the first of two runs), exhausted (memory, but for little workspace: it is killed).
"""

import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parent))
from fake_plan import PlanError, describe_graph, misread, read_file, time_layer, write_plan

TABLE = json.loads((Path(__file__).parent / "trtexec_versions.json").read_text(encoding="utf-8"))
STAMP = "[11/21/2026-01:36:50]"
TYPES = {1: "fp32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 9: "bool", 10: "fp16", 16: "bf16"}
NUMPY = {"fp32": "float32", "fp16": "float16", "bf16": "float32"}
COPY_MS = 0.02
ENQUEUE_MS = 0.03
PRECISIONS = ("fp16", "bf16", "int8", "fp8")
# As 8.6.0 words them, one without its last word.
FORMATS = {"FP32": "Row major linear FP32", "INT8": "Row major Int8 format", "UINT8": "Unknown format"}
NOT_LOADED = ("Engine deserialization failed", "Got invalid engine!", "Inference set up failed")
NO_LIBRARY = "cannot open shared object file: No such file or directory"


class Stop(Exception):
    """The end of a run: exit code, and whether a FAILED banner is printed."""

    def __init__(self, code: int, banner: bool = True) -> None:
        self.code, self.banner = code, banner


class Trtexec:
    """One run of one version."""

    def __init__(self, version: str, argv: list[str]) -> None:
        self.traits = TABLE["versions"][version]
        self.version = version
        self.column = self.traits["column"]
        build = f" [b{self.traits['build']}]" if self.traits["build"] else ""
        self.tail = f"TensorRT.trtexec [TensorRT v{self.traits['number']}]{build} # {' '.join(['trtexec', *argv])}"
        self.argv = argv
        self.faults = os.environ.get("FAKE_TRTEXEC_FAULT", "").split(",")
        self.options: dict[str, list[str]] = {}

    def main(self) -> int:
        print(f"&&&& RUNNING {self.tail}")
        if self.argv[:1] in (["--help"], ["-h"]):
            self.print_help()
            return 0
        try:
            self.run()
        except Stop as stop:
            if stop.banner:
                print(f"&&&& FAILED {self.tail}")
            return stop.code
        if "no_passed" not in self.faults:
            print(f"&&&& PASSED {self.tail}")
        return 0

    # Options

    def knows(self, name: str) -> bool:
        letters = TABLE["flags"].get(name)
        return letters is not None and letters[self.column] == "y"

    def listed(self) -> list[str]:
        return [n for n in TABLE["flags"] if self.knows(n) and n not in TABLE["not_in_help"]]

    def print_help(self) -> None:
        print("=== Model Options ===")
        for name in self.listed():
            print(f"  --{name + '=spec':<33}Sets {name} (default = none)")

    def parse(self) -> None:
        unknown = []
        for argument in self.argv:
            name, _, value = argument.removeprefix("--").partition("=")
            repeated = name in self.options and name not in TABLE["repeatable"]
            if not argument.startswith("--") or not self.knows(name) or repeated:
                unknown.append((argument.partition("=")[0], value))
            else:
                self.options.setdefault(name, []).append(value)
        if self.traits["asks_device_early"]:
            self.ask_device()
        if not {"onnx", "loadEngine"} & self.options.keys():
            self.refuse("Model missing or format not recognized")
        if {"saveEngine", "loadEngine"} <= self.options.keys():
            self.refuse("Incompatible load and save engine options selected")
        for name in ("iterations", "warmUp", "infStreams", "avgRuns"):
            if not (self.text(name, "1")).lstrip("-").isdigit():
                self.refuse("stoi")
        if unknown:
            self.refuse(*(f"Unknown option: {name} {value}" for name, value in unknown))

    def refuse(self, *messages: str) -> NoReturn:
        for message in messages:
            self.error(message)
        raise Stop(1, self.traits["option_error_banner"])

    def text(self, name: str, default: str = "") -> str:
        return self.options.get(name, [default])[-1]

    def has(self, name: str) -> bool:
        return name in self.options

    # Talking

    def info(self, text: str) -> None:
        print(f"{STAMP} [I] {text}")

    def warn(self, text: str) -> None:
        self.error(text, "W")

    def error(self, text: str, level: str = "E") -> None:
        sys.stdout.flush()
        print(f"{STAMP} [{level}] {text}", file=sys.stderr, flush=True)

    def ask_device(self) -> None:
        if "no_driver" in self.faults:
            where = "" if self.traits["number"] < 101600 else " at samples/common/common.h:1011"
            self.die(f"Cuda failure{where}: CUDA driver version is insufficient for CUDA runtime version")
        if "no_device" in self.faults:
            self.info(f"Cannot find device ID {self.text('device', '0')}!")
            raise Stop(1, banner=False)

    def die(self, text: str) -> NoReturn:
        sys.stdout.flush()
        print(text, file=sys.stderr, flush=True)
        if self.traits["no_driver_exit"] == 134:
            os.abort()
        raise Stop(self.traits["no_driver_exit"], banner=False)

    # The run

    def run(self) -> None:
        self.parse()
        self.print_options()
        self.ask_device()
        self.print_device()
        seen = Path("not-ready-once")  # in the folder of the run
        if "not_ready" in self.faults and self.has("exportProfile") and not seen.exists():
            seen.touch()
            self.die("Cuda failure: device not ready")
        if "no_library" in self.faults:
            name = f"libnvinfer_plugin.so.{self.version.split('.')[0]}"
            self.fail(f"Uncaught exception detected: Unable to open library: {name} due to {name}: {NO_LIBRARY}")
        head, onnx_bytes = self.load() if self.has("loadEngine") else self.build()
        self.export_layers(head)
        if self.has("skipInference"):
            self.info("Skipped inference phase since --skipInference is added.")
            return
        self.infer(head, onnx_bytes)

    def print_options(self) -> None:
        weak = [name.upper() for name in PRECISIONS if self.has(name)]
        typed = self.traits["defaults_of_11"] or self.has("stronglyTyped")
        if self.traits["weak_warning"] and weak:
            self.warn("Weakly-typed networks have been deprecated in TensorRT.")
        self.info("=== Model Options ===")
        self.info(f"Format: {'ONNX' if self.has('onnx') else '*'}")
        self.info(f"Model: {self.text('onnx')}")
        self.info("Output:")
        if self.has("onnx") or self.traits["build_block_on_load"]:
            self.info("=== Build Options ===")
            self.info(f"Precision: {'Strongly Typed' if typed else '+'.join(['FP32', *weak])}")
            self.info(f"Load engine: {self.text('loadEngine')}")
        self.info("=== System Options ===")
        self.info(f"Device: {self.text('device', '0')}")
        self.print_inference_options()
        self.info("=== Reporting Options ===")
        self.info("Averages: 10 inferences")
        self.info(f"Percentiles: {self.text('percentile', '90,95,99')}")
        self.info("")

    def print_inference_options(self) -> None:
        def enabled(on: bool) -> str:
            return "Enabled" if on else "Disabled"

        batch = "Explicit" if self.has("onnx") or self.version != "8.6.1" else self.text("batch", "1")
        self.info("=== Inference Options ===")
        self.info(f"Batch: {batch}")
        self.info(f"Iterations: {self.text('iterations', '10')}")
        self.info(f"Duration: {self.text('duration', '3')}s (+ {self.text('warmUp', '200')}ms warm up)")
        self.info("Sleep time: 0ms")
        self.info("Idle time: 0ms")
        self.info(f"Inference Streams: {self.text('infStreams', '1')}")
        self.info("ExposeDMA: Disabled")
        self.info(f"Data transfers: {enabled(self.switch('DataTransfers'))}")
        self.info(f"Spin-wait: {enabled(self.switch('SpinWait'))}")
        self.info("Multithreading: Disabled")
        self.info(f"CUDA Graph: {enabled(self.switch('CudaGraph'))}")
        if not self.traits["defaults_of_11"]:
            self.info(f"Separate profiling: {enabled(self.has('separateProfileRun'))}")
        self.info("Time Deserialize: Disabled")

    def switch(self, name: str) -> bool:
        """CudaGraph, SpinWait and DataTransfers: 11 turned all three round."""
        on, off = ("include", "no") if name == "DataTransfers" else ("use", "no")
        usual = self.traits["defaults_of_11"] != (name == "DataTransfers")
        return not self.has(off + name) if usual else self.has(on + name)

    def print_device(self) -> None:
        self.info("=== Device Information ===")
        if self.traits["device_ids"]:
            self.info("Available Devices: ")
            self.info('  Device 0: "Fake GPU" UUID: GPU-11111111-2222-3333-4444-555555555555')
        self.info("Selected Device: Fake GPU")
        self.info("Compute Capability: 9.0")
        number = self.traits["number"]
        unit = 10000 if number >= 100000 else 1000
        self.info(f"TensorRT version: {number // unit}.{number % unit // 100}.{number % 100}")

    def build(self) -> tuple[dict[str, Any], bytes]:
        path = Path(self.text("onnx"))
        self.info("Start parsing network model.")
        if not path.is_file():
            self.error(f"Could not open file {path}")
            self.fail_build("Failed to parse onnx file", "Parsing model failed")
        if "hangs" in self.faults:
            time.sleep(600)
        if "weights" in self.faults:
            self.error("[TRT] WeightsContext.cpp:203: Failed to open file: net.data")
            self.error(
                "[TRT] ModelImporter.cpp:953: ERROR: ModelImporter.cpp:195 In function parseGraph:\n[8] Failed to "
                "import initializer: w"
            )
            self.fail_build("Failed to parse onnx file", "Parsing model failed")
        if self.traits["own_library"] and Path(self.text("timingCacheFile") or "/none").is_file():
            place = "[myelinCache.h::deserializeFromBuffer::52] Error Code 1: Myelin"
            self.error(f"Error[1]: {place} (Myelin error from unknown graph)")
            self.error("Error[4]: The timing cache will not be used!")
        self.info("Finished parsing network model. Parse time: 0.000484605")
        if self.has("useDLACore"):
            self.warn("[TRT] Layer 'softmax' (SOFTMAX): Unsupported on DLA. Switching this layer's device type to GPU.")
        if "exhausted" in self.faults and self.text("memPoolSize") != "workspace:256":
            os.kill(os.getpid(), signal.SIGKILL)
        if "build_fails" in self.faults:
            self.fail_save()
        weak = [name for name in PRECISIONS if self.has(name)]
        data = path.read_bytes()
        try:
            tf32 = not self.has("noTF32") or "ignores_tf32" in self.faults
            data = misread(data) if self.version == "8.6.1" else data
            head = describe_graph(data, weak, "ignores_precision" in self.faults, tf32=tf32)
        except Exception:
            self.error("[TRT] ModelImporter: In node -1: INVALID_GRAPH")
            self.fail_build("Failed to parse onnx file", "Parsing model failed")
        head |= {
            "version": self.version,
            "detailed": self.text("profilingVerbosity") == "detailed",
            "flags": ["VERSION_COMPATIBLE"] if self.has("versionCompatible") else [],
            "profiles": self.read_profiles(head),
        }
        self.info("Engine built in 0.300491 sec.")
        self.size_engine(data)
        if self.has("saveEngine"):
            plan = b"" if "empty_plan" in self.faults else write_plan(data, **head)
            Path(self.text("saveEngine")).write_bytes(plan)
        return head, data

    def read_profiles(self, head: dict[str, Any]) -> list[list[dict[str, list[int]]]]:
        sides = [self.options.get(f"{name}Shapes", []) for name in ("min", "opt", "max")]
        static = all(min(v["shape"], default=1) > 0 for v in head["inputs"])
        if any(sides) and static:
            static = "Static model does not take explicit shapes since the shape of inference tensors will be ..."
            self.fail_build(static, "Network And Config setup failed")
        if not any(sides):
            only = {v["name"]: [max(a, 1) for a in v["shape"]] for v in head["inputs"]}
            return [[only, only, only]]
        return [[read_shapes(side[i]) for side in sides] for i in range(len(sides[0]))]

    def fail(self, *chain: str) -> NoReturn:
        for text in chain:
            self.error(text)
        raise Stop(1)

    def fail_build(self, *chain: str) -> NoReturn:
        said = ("Building engine failed", "Failed to create engine from model or file.", "Engine set up failed")
        self.fail(*chain, *said)

    def fail_save(self) -> NoReturn:
        self.error(
            "[TRT] IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (no implementation for node Conv_0.)"
        )
        if self.traits["failed_save_banner"] or not self.has("saveEngine"):
            self.fail_build("Engine could not be created from network")
        Path(self.text("saveEngine")).write_bytes(b"")
        self.info("Created engine with size: 0 MiB")
        self.info("Engine built in 0.000115145 sec.")
        self.error('Assertion failure: false && "Attempting to access an empty engine!"')
        raise Stop(1, banner=False)

    def load(self) -> tuple[dict[str, Any], bytes]:
        path = self.text("loadEngine")
        if not Path(path).is_file():
            self.fail(f"Error opening engine file: {path}", *NOT_LOADED)
        try:
            head, onnx_bytes = read_file(path)
            if head["version"] != self.version or "wrong_version" in self.faults:
                raise PlanError(f"plan version {head['version']} does not match this library")
        except PlanError as error:
            self.fail(f"[TRT] IRuntime::deserializeCudaEngine: Error Code 1: Serialization ({error})", *NOT_LOADED)
        self.size_engine(onnx_bytes)
        self.info("Engine deserialized in 3.3467e-05 sec.")
        return head, onnx_bytes

    def size_engine(self, data: bytes) -> None:
        self.info(f"[TRT] Loaded engine size: {len(data) >> 20} MiB")

    def export_layers(self, head: dict[str, Any]) -> None:
        if not self.has("exportLayerInfo"):
            return
        types = {value["name"]: TYPES[value["type"]] for value in (*head["inputs"], *head["outputs"])}
        if not self.traits["binding_type"]:
            types = {name: kind.replace("int64", "int32") for name, kind in types.items()}
        layers = [describe_layer(layer, types) if head["detailed"] else layer["name"] for layer in head["layers"]]
        tensors = [*head["inputs"], *head["outputs"]]
        named = self.traits["layers_io"] == "Bindings"
        ends = [t["name"] if named else {"Name": t["name"], "Dimensions": t["shape"]} for t in tensors]
        document = {"Layers": layers, "Bindings" if named else "I/O Tensors": ends}
        self.export("exportLayerInfo", leave_raw(json.dumps(document, indent=1)))

    def export(self, option: str, text: str) -> None:
        """Writes a file; a folder that is not there is passed over in silence, as trtexec does."""
        path = Path(self.text(option))
        if path.parent.is_dir() and "silent_export" not in self.faults:
            path.write_text(text, encoding="utf-8")

    def infer(self, head: dict[str, Any], onnx_bytes: bytes) -> None:
        shapes = self.choose_shapes(head)
        for value in head["inputs"]:
            self.name_binding("Input", value, shapes[value["name"]])
        batch = next(iter(shapes.values()), [1])[0]
        outputs = {v["name"]: [a if a > 0 else batch for a in v["shape"]] for v in head["outputs"]}
        for value in head["outputs"]:
            self.name_binding("Output", value, outputs[value["name"]])
        self.info("Starting inference")
        if "device_fault" in self.faults:
            self.die("Cuda failure: an illegal memory access was encountered")
        if "profile_faults" in self.faults and self.has("exportProfile"):
            self.die("Cuda failure: an illegal memory access was encountered")
        if "aborts" in self.faults or ("profile_aborts" in self.faults and self.has("exportProfile")):
            sys.stdout.flush()
            os.abort()
        self.capture()
        profiles = self.has("exportProfile") or self.has("dumpProfile")
        separate = self.traits["defaults_of_11"] or self.has("separateProfileRun")
        if separate or not profiles:
            self.time(head, batch)
        if self.has("exportProfile"):
            self.export_profile(head)
        if self.has("exportOutput"):
            self.export("exportOutput", self.compute(head, onnx_bytes, shapes))

    def choose_shapes(self, head: dict[str, Any]) -> dict[str, list[int]]:
        index = int(self.text("useProfile", "0"))
        if index >= len(head["profiles"]):
            self.fail(f"Selected profile index {index} exceeds the number of profiles that the engine holds.")
        low, _, high = head["profiles"][index]
        asked = read_shapes(self.text("shapes")) if self.has("shapes") else {}
        shapes = {v["name"]: asked.get(v["name"]) or self.guess_shape(v) for v in head["inputs"]}
        for name, shape in shapes.items():
            if any(not a <= s <= b for a, s, b in zip(low[name], shape, high[name], strict=True)):
                dims, smallest, largest = (",".join(map(str, side)) for side in (shape, low[name], high[name]))
                if self.traits["own_library"]:
                    place = "executionContext.cpp::setInputShape::2229"
                    self.fail(
                        f"Error[3]: [{place}] Error Code 3: API Usage Error (Parameter check failed at: runtime/api/"
                        f"{place}, condition: satisfyProfile. Runtime dimension does not satisfy any optimization "
                        "profile.",
                        "Inference set up failed",
                    )
                self.fail(
                    "[TRT] IExecutionContext::setInputShape: Error Code 3: API Usage Error (Parameter check failed, "
                    f"condition: satisfyProfile. Set dimension [{dims}] for tensor {name} does not satisfy any "
                    f"optimization profiles. Valid range for profile {index}: [{smallest}]..[{largest}].)",
                    "Inference set up failed",
                )
        return shapes

    def guess_shape(self, value: dict[str, Any]) -> list[int]:
        shape = [max(axis, 1) for axis in value["shape"]]
        if min(value["shape"], default=1) < 0:
            dims = "x".join(map(str, shape))
            self.warn(
                f"Shape missing for input with dynamic shape: {value['name']}Automatically setting shape to: {dims}"
            )
        return shape

    def name_binding(self, mode: str, value: dict[str, Any], shape: list[int]) -> None:
        text = f"binding for {value['name']} with dimensions {'x'.join(map(str, shape))}"
        kind = f" and type {TYPES[value['type']]}" if self.traits["binding_type"] else ""
        old = self.traits["own_library"]
        self.info(f"Created {mode.lower()} {text}" if old else f"{mode} {text}{kind} is created.")

    def capture(self) -> None:
        if not self.switch("CudaGraph"):
            return
        if "capture_fails" not in self.faults:
            if self.traits["says_captured"]:
                self.info("Successfully captured CUDA graph for the current execution context")
            return
        self.warn("The CUDA graph capture on the stream has failed.")
        self.warn("The built TensorRT engine contains operations that are not permitted under CUDA graph capture mode.")
        launched = "The inference will be launched without using CUDA graph"
        ignored = f"The specified --useCudaGraph flag has been ignored. {launched} launch."
        self.warn(f"CUDA graph capture failed. {launched}." if self.traits["defaults_of_11"] else ignored)

    def time(self, head: dict[str, Any], batch: int) -> None:
        compute = sum(map(time_layer, head["layers"])) * batch**0.5
        copy = COPY_MS if self.switch("DataTransfers") else 0.0
        period = compute + 0.01
        warmup, duration = float(self.text("warmUp", "200")), 1000 * float(self.text("duration", "3"))
        streams = int(self.text("infStreams", "1"))
        warmup_queries = math.ceil(warmup / period)
        n = max(int(self.text("iterations", "10")), math.ceil(duration / period)) + self.traits["extra_query"]
        entries = [make_entry(warmup + i * period, compute * jitter(i), copy) for i in range(n * streams)]
        self.info(f"Warmup completed {warmup_queries} queries over {warmup:g} ms")
        wall = (entries[-1]["endD2hMs"] - entries[0]["startH2dMs"]) / 1000
        self.info(f"Timing trace has {n * streams} queries over {wall:g} s")
        self.print_summary(entries, wall)
        if self.has("exportTimes"):
            rows = "\n, ".join("{ " + ", ".join(f'"{k}" : {v:g}' for k, v in entry.items()) + " }" for entry in entries)
            self.export("exportTimes", f"[\n  {rows}\n]\n")

    def print_summary(self, entries: list[dict[str, float]], wall: float) -> None:
        self.info("")
        self.info("=== Performance summary ===")
        self.info(f"Throughput: {len(entries) / wall:g} qps")
        scale = 1.1 if "log_disagrees" in self.faults else 1.0
        rows = {
            "Latency": [scale * e["latencyMs"] for e in entries],
            "Enqueue Time": [e["endEnqMs"] - e["startEnqMs"] for e in entries],
            "H2D Latency": [e["h2dMs"] for e in entries],
            "GPU Compute Time": [e["computeMs"] for e in entries],
            "D2H Latency": [e["d2hMs"] for e in entries],
        }
        for name, values in rows.items():
            self.info(f"{name}: {summarize(values, self.text('percentile', '90,95,99'))}")
        self.info(f"Total Host Walltime: {wall:g} s")
        self.info(f"Total GPU Compute Time: {sum(rows['GPU Compute Time']) / 1000:g} s")
        if "enqueue_bound" in self.faults:
            self.warn(
                "* Throughput may be bound by Enqueue Time rather than GPU Compute and the GPU may be under-utilized."
            )
        self.info("")

    def export_profile(self, head: dict[str, Any]) -> None:
        times = [*map(time_layer, head["layers"])]
        count, total = 100, sum(times)
        rows = [f'  {{ "count" : {count} }}']
        for layer, ms in zip(head["layers"], times, strict=True):
            rows.append(
                f', {{ "name" : "{layer["name"]}", "timeMs" : {ms * count:g}, "averageMs" : {ms:g}, '
                f'"medianMs" : {ms:g}, "percentage" : {100 * ms / total:g} }}'
            )
        self.export("exportProfile", "[\n" + "\n".join(rows) + "\n]\n")

    def load_input(self, path: str, dtype: str, size: int) -> Any:
        """As `loadFromFile` of sampleUtils.cpp: from 10 on a file of twice the size is taken, too, its first half."""
        import numpy as np

        wanted, found = size * np.dtype(dtype).itemsize, Path(path).stat().st_size
        if found < wanted or (self.traits["binding_type"] and found not in (wanted, 2 * wanted)):
            self.fail(
                f"Uncaught exception detected: Unexpected file size for input file: {path}. Note: Input binding size "
                f"is: {wanted} bytes but the file size is {found} bytes."
            )
        return np.fromfile(path, dtype, count=size)

    def compute(self, head: dict[str, Any], onnx_bytes: bytes, shapes: dict[str, list[int]]) -> str:
        import numpy as np
        import onnxruntime

        given = dict(item.rsplit(":", 1) for item in self.text("loadInputs").split(",") if item)
        given = {name.strip("'"): path for name, path in given.items()}
        feeds = {}
        for value in head["inputs"]:
            name, dtype = value["name"], NUMPY.get(TYPES[value["type"]], TYPES[value["type"]])
            size = math.prod(shapes[name])
            stored = "int32" if dtype == "int64" and not self.traits["binding_type"] else dtype
            data = self.load_input(given[name], stored, size) if name in given else np.ones(size, stored)
            feeds[name] = data.astype(dtype).reshape(shapes[name])
        names = [v["name"] for v in head["outputs"]]
        answers = onnxruntime.InferenceSession(onnx_bytes).run(names, feeds)
        entries = [
            f'{{ "name" : "{name}"\n  , "dimensions" : "{"x".join(map(str, a.shape))}"\n'
            f'  , "values" : [ {", ".join(f"{float(v):g}" for v in a.ravel())} ]\n  }}'
            for name, a in zip(names, answers, strict=True)
        ]
        return "[\n  " + "\n, ".join(entries) + "\n]\n"


def read_shapes(text: str) -> dict[str, list[int]]:
    shapes = {}
    for piece in text.split(","):
        name, _, dims = piece.rpartition(":")
        shapes[name.strip("'")] = [int(d) for d in dims.split("x")]
    return shapes


def leave_raw(document: str) -> str:
    """TensorRT escapes no control character of its texts."""
    return document.replace("\\u001e", "\x1e")


def describe_layer(layer: dict[str, Any], types: dict[str, str] | None = None) -> dict[str, Any]:
    def tensors(names: list[str]) -> list[dict[str, Any]]:
        kinds = {name: (types or {}).get(name, layer["precision"]).upper() for name in names}
        return [
            {"Name": n, "Dimensions": [1, 8], "Format/Datatype": FORMATS.get(kind, f"Row major linear {kind} format")}
            for n, kind in kinds.items()
        ]

    return {
        "Name": layer["name"],
        "LayerType": layer["type"],
        "Inputs": tensors(layer["inputs"]),
        "Outputs": tensors(layer["outputs"]),
        **({"TacticValue": "0x0000000000000000"} if layer["type"] == "NoOp" else {"TacticName": layer["kernel"]}),
        "StreamId": 0,
        "Metadata": f"[ONNX Layer: {layer['name']}]\x1e[ONNX Layer: {layer['name']}]",
    }


def jitter(index: int) -> float:
    """A factor within one percent, the same in every run."""
    return 1 + 0.01 * math.sin(12.9898 * index)


def make_entry(start: float, compute: float, copy: float) -> dict[str, float]:
    begin, end = start + copy, start + copy + compute
    spans = {
        "Enq": (start - ENQUEUE_MS / 2, start + ENQUEUE_MS / 2),  # the GPU begins before the host is through
        "H2d": (start, begin),
        "Compute": (begin, end),
        "D2h": (end, end + copy),
    }
    times = {f"{side}{part}Ms": span[i] for part, span in spans.items() for i, side in enumerate(("start", "end"))}
    return times | {"h2dMs": copy, "computeMs": compute, "d2hMs": copy, "latencyMs": compute + 2 * copy}


def summarize(values: list[float], percentiles: str) -> str:
    v = sorted(float(f"{x:g}") for x in values)
    n = len(v)
    median = (v[(n - 1) // 2] + v[n // 2]) / 2
    parts = [f"min = {v[0]:g} ms", f"max = {v[-1]:g} ms", f"mean = {sum(v) / n:g} ms", f"median = {median:g} ms"]
    for text in percentiles.split(","):
        index = max(n - 1 - int((1 - float(text) / 100) * n), 0)
        parts.append(f"percentile({float(text):g}%) = {v[index]:g} ms")
    return ", ".join(parts)


def main(version: str, argv: list[str]) -> int:
    return Trtexec(version, argv).main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
