"""Trained models in FP32 and INT8: what 8 bits bring in time, and what they cost of what the model is for.

    python benchmarks/trained.py [--processes 10] [--samples 300] [--only text|speech]

PP-OCR v4 reads lines of text that are drawn here, blurred and noisy (character error rate); Silero VAD hears sentences
that espeak-ng speaks, between noise and hum (F1 over chunks of 32 ms). Models, fonts and voices come from packages of
the extra `models-test`. Ranges and times are taken on other samples than those that are judged: no line and no
recording is in both. Ten minutes on two cores.

The claims of docs/results.md rest on this.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import onnx
from PIL import Image, ImageDraw, ImageFilter, ImageFont

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT / "src")]

import enginebench  # noqa: E402
from enginebench.core.names import format_precision  # noqa: E402
from enginebench.core.records import Estimate  # noqa: E402
from trained import find_file, record_talk  # noqa: E402

ENGINES = "ort,openvino"
WORDS = (
    *("engine", "invoice", "number", "Berlin", "total", "speed", "limit", "paper", "quartz", "night", "yellow"),
    *("KG", "No.", "Page", "Exit", "Warm", "Queue", "mixed", "fjord", "Box", "Zoo", "VAT", "open", "door", "jump"),
)
SENTENCES = (
    *("The engine is warm now.", "Please measure it again.", "Seven, eight, nine.", "Good night.", "Who is there?"),
    *("Turn left at the station.", "It rained all day.", "Nobody answered the phone.", "We leave at ten."),
    *("The second window is open.", "Bring bread and butter.", "A quiet street in winter.", "Zero point five."),
)
CHUNKS = 150  # of a recording: 4.8 s
LINE_HEIGHT, LINE_WIDTH = 48, 320


def draw_line(text: str, size: int = 34) -> Image.Image:
    """Black text on white, by the font that Pillow brings along."""
    font = ImageFont.load_default(size)
    picture = Image.new("RGB", (round(font.getlength(text)) + 24, LINE_HEIGHT), "white")
    ImageDraw.Draw(picture).text((12, 3), text, font=font, fill="black")
    return picture


def draw_lines(texts: Sequence[str], draw: Callable[[str], Image.Image]) -> np.ndarray[Any, Any]:
    """Lines as PP-OCR's recognizer takes them: [lines, 3, 48, 320], -1 to 1, filled up on the right."""
    lines = np.zeros((len(texts), 3, LINE_HEIGHT, LINE_WIDTH), np.float32)
    for i, text in enumerate(texts):
        picture = draw(text)
        width = min(LINE_WIDTH, picture.width)
        pixels = np.asarray(picture.resize((width, LINE_HEIGHT)), np.float32)[:, :, ::-1]
        lines[i, :, :, :width] = (pixels.transpose(2, 0, 1) / 255 - 0.5) / 0.5
    return lines


def read_characters(model: Path) -> list[str]:
    """The characters that a recognizer of PP-OCR knows, from its metadata; the first is none, the last a space."""
    (text,) = [p.value for p in onnx.load(model).metadata_props if p.key == "character"]
    return ["", *text.splitlines(), " "]


class Task(NamedTuple):
    """One model with samples for its ranges and times, and others to judge it by."""

    name: str
    model: Path
    ranges: Path
    held_out: Path
    targets: Path
    options: dict[str, Any]


def prepare_text(folder: Path, samples: int) -> Task:
    """Lines of PP-OCR's recognizer, as a bad scanner would see them."""
    model = find_file("rapidocr_onnxruntime", "models", "ch_PP-OCRv4_rec_infer.onnx")
    rng = np.random.default_rng(1)
    texts = list(dict.fromkeys(write_line(rng) for _ in range(2 * samples)))[: samples + 48]
    lines = draw_lines(texts, lambda text: blur_line(text, rng))
    np.savez(folder / "ranges.npz", x=lines[:48])
    np.savez(folder / "held-out.npz", x=lines[48:])
    known = {"targets": texts[48:], "vocabulary": read_characters(model), "blank": 0}
    (folder / "targets.json").write_text(json.dumps(known), encoding="utf-8")
    places = (folder / "ranges.npz", folder / "held-out.npz", folder / "targets.json")
    return Task("PP-OCR v4 recognition", model, *places, {"task": "text", "metric": "cer"})


def write_line(rng: np.random.Generator) -> str:
    """One or two words and a number, at most 16 characters: what fits into the width of the model's lines."""
    words = [str(word) for word in rng.choice(WORDS, 2, replace=False)]
    return f"{' '.join(words)[:11].strip()} {rng.integers(1, 10_000)}"


def blur_line(text: str, rng: np.random.Generator) -> Image.Image:
    """The line in a small type, out of focus, on grey and noisy paper."""
    picture = draw_line(text, int(rng.integers(20, 32))).filter(ImageFilter.GaussianBlur(float(rng.uniform(0.5, 1.6))))
    pixels = np.asarray(picture, np.float32)
    contrast, paper = rng.uniform(0.35, 0.9), rng.uniform(150, 240)
    pixels = paper - contrast * (255 - pixels) * paper / 255 + rng.normal(0, 10, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def prepare_speech(folder: Path, samples: int) -> Task:
    """Recordings of Silero VAD: three sentences each, in noise of many levels."""
    model = find_file("silero_vad", "data", "silero_vad_16k_sequence.onnx")
    rng = np.random.default_rng(1)
    state = np.zeros((1, 1, 128), np.float32)
    truth = []
    count = max(8, samples // 6)
    for place, many in (("ranges", 8), ("held-out", count)):
        (folder / place).mkdir()
        for i in range(many):
            chunks, spoken = record_talk([str(text) for text in rng.choice(SENTENCES, 4, replace=False)], rng)
            chunks = chunks[:CHUNKS] + rng.normal(0, 10 ** rng.uniform(-3, -1), chunks[:CHUNKS].shape)
            np.savez(folder / place / f"{i:03}.npz", input=chunks.astype(np.float32), h=state, c=state)
            truth += [spoken[:CHUNKS].astype(int).tolist()] if place == "held-out" else []
    (folder / "targets.json").write_text(json.dumps(truth), encoding="utf-8")
    places = (folder / "ranges", folder / "held-out", folder / "targets.json")
    return Task("Silero VAD", model, *places, {"metric": "f1"})


def measure(task: Task, folder: Path, processes: int) -> None:
    """Prints a line for each row: its time, its speed-up, and what it makes of the samples held out."""
    run = enginebench.run(
        task.model,
        engines=ENGINES,
        precisions="fp32,int8",
        inputs=task.ranges,
        processes=processes,
        time_limit=1.5,
        out=folder / "run",
    )
    # OpenVINO is handed an IR made of the last graph in the chain; that graph is what the verdict is about.
    graphs = {r.id: [a.path for a in r.artifacts if a.path.endswith(".onnx")][-1] for r in run.results if r.artifacts}
    for row in run.rows:
        if row.status != "ok" or row.p50_ms is None:
            print(f"| {task.name} | {row.engine} {row.requested_precision} | {row.status}: {row.reason} |")
            continue
        judged = enginebench.accuracy(
            (row.engine, graphs[row.id]),
            ref=("ort", task.model),
            inputs=task.held_out,
            targets=task.targets,
            **task.options,
        )
        score = judged.scores[0]
        cells = (
            task.name,
            f"{row.engine} {format_precision(row.requested_precision, row.recipe)}",
            f"{show(row.p50_ms)} ms{'' if row.validity == 'valid' else ', ' + row.validity}",
            f"{show(row.speedup)}, {row.verdict}" if row.speedup and row.verdict else "1",
            show(score.value),
            show(score.delta) if score.delta else "",
        )
        print(f"| {' | '.join(cells)} |", flush=True)


def show(value: Estimate) -> str:
    ends = "" if value.low is None else f" ({value.low:.4g} to {value.high:.4g})"
    return f"{value.value:.4g}{ends}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--samples", type=int, default=300, help="lines that are judged; a sixth as many recordings")
    parser.add_argument("--only", choices=["text", "speech"])
    asked = parser.parse_args(words)
    print("| model | row | p50 | over ort fp32 | held out | less that of ort fp32 |\n|---|---|---|---|---|---|")
    for name, prepare in (("text", prepare_text), ("speech", prepare_speech)):
        if asked.only in (None, name):
            with TemporaryDirectory() as place:
                measure(prepare(Path(place), asked.samples), Path(place), asked.processes)


if __name__ == "__main__":
    main()
