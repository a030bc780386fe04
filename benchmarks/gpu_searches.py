"""The searches of docs/tune.md on an NVIDIA GPU: what each named, when, and what it built in which order.

    python benchmarks/gpu_searches.py --out DIR [--only resnet50-b32,...]

Needs TensorRT, timm and transformers. Progress of each search, with seconds, is in DIR/NAME.log. A search whose folder
is there already is reported, not run again. Exit code 1 where one took longer than its goal, or named a longer time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import msgspec

from enginebench.features.tune.records import TuneDocument, read_search


class Search(msgspec.Struct, frozen=True):
    """One search: its command, and its goal in milliseconds."""

    arguments: list[str]
    budget_s: int
    goal_ms: float


ENGINES = ["--engines", "pytorch,pytorch-cudagraph,pytorch-compile,tensorrt"]
INT8 = ["--weights", "random", "--precisions", "fp16,int8", *ENGINES]
SEARCHES = {
    "resnet50-b32": Search(["resnet50", "--batch", "32", *INT8], 300, 0.73),
    "vit-b32": Search(["timm:vit_base_patch16_224", "--weights", "random", "--batch", "32"], 180, 2.67),
    "bert-b1": Search(["benchmarks.attention:bert"], 180, 0.642),
    "bert-b16": Search(["benchmarks.attention:bert", "--batch", "16"], 180, 1.103),
}
# Times of one machine and another differ by less.
TOLERANCE = 1.02


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(SEARCHES))
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    met = [run(name, options.out, options.device) for name in options.only.split(",")]
    return 0 if all(met) else 1


def run(name: str, out: Path, device: str) -> bool:
    """Runs one search, and prints what came of it; whether it met its goal."""
    search, folder = SEARCHES[name], out / name
    if not (folder / "tune.json").exists():
        budget = f"{search.budget_s}s"
        command = [sys.executable, "-m", "enginebench", "tune", *search.arguments, "--device", device]
        with (out / f"{name}.log").open("w") as log:
            subprocess.run(
                [*command, "--time-budget", budget, "--out", str(folder)], stdout=log, stderr=log, check=False
            )
    if not (folder / "tune.json").exists():
        print(f"{name}: failed; see {out / name}.log")
        return False
    document = msgspec.json.decode((folder / "tune.json").read_bytes(), type=TuneDocument)
    record = read_search(folder)
    finalists = {one.candidate: one for one in document.final}
    winner = document.winner.candidate if document.winner else "nothing"
    cost = finalists[winner].cost if winner in finalists else None
    shown = (
        f"{cost.value:.3f} ms ({cost.low or cost.value:.3f} to {cost.high or cost.value:.3f})" if cost else "no final"
    )
    print(
        f"{name}: {winner}, {shown} a sample, {document.spent_s:.0f} of {search.budget_s} s; "
        f"goal {search.goal_ms} ms a call"
    )
    for generation in record.generations:
        print(f"    {generation.proposer or 'first'}: {', '.join(one.name for one in generation.settings)}")
    print(f"    longest build of each engine: {record.build_s}; not built in time: {list(record.untried)}")
    batch = document.winner.batch if document.winner else 1
    found_ms = cost.value * batch if cost else float("inf")
    return found_ms <= search.goal_ms * TOLERANCE and document.spent_s <= search.budget_s


if __name__ == "__main__":
    sys.exit(main())
