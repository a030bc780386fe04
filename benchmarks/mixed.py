"""Precision by layer for real: how fast the best graph in mixed precision is, and how much of the answers it keeps.

    python benchmarks/mixed.py [--models efficientnet_b0,mobilenet_v3_small] [--engine ort] [--limit 0.95]
                               [--time-budget 20m] [--processes 10] [--out DIR] [--resume] [--json]

Each model is searched in FP32 and INT8 under a limit of centred cosine; the table shows FP32, INT8 and every graph that
raced. Exit code 1 when no graph in mixed precision keeps the limit, or none is at least as fast as FP32.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from enginebench.core.names import parse_engine
from enginebench.core.records import Estimate, MeasureSpec
from enginebench.features.tune.document import Candidate, TuneDocument
from enginebench.features.tune.mixed import Layering, read_mixed
from enginebench.features.tune.records import SearchRequest
from enginebench.features.tune.sitting import tune_model
from enginebench.features.tune.verb import parse_budget
from enginebench.measure.pin import default_threads
from enginebench.runs.folder import RunFolder, RunRequest

LIMIT = "centred_cosine"


class Told:
    """Progress on stderr."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def step(self, text: str) -> None: ...

    def begin(self, count: int) -> None: ...

    def advance(self) -> None: ...


def search(model: str, args: argparse.Namespace) -> tuple[TuneDocument, Layering | None]:
    """The search of one model, and what it found out about its groups."""
    threads = args.threads or default_threads()
    run = RunRequest(
        model=model,
        engines=(parse_engine(args.engine),),
        precisions=(("fp32", None), ("int8", None)),
        threads=threads,
        measure=MeasureSpec(processes=args.processes, time_limit_s=args.time_limit),
        data=args.data,
    )
    request = SearchRequest(
        run=run, budget_s=parse_budget(args.time_budget), threads=threads, limits={LIMIT: args.limit}
    )
    root = args.out / Path(model).stem.replace(":", "-")
    document, _ = tune_model(request, root, reporter=Told(), resume=args.resume, budget_s=request.budget_s)
    layerings = read_mixed(RunFolder(root)).layerings
    return document, layerings[0] if layerings else None


def show(document: TuneDocument, layering: Layering | None) -> dict[str, object]:
    """The figures of one model."""
    held = {graph.name: graph.held[0].value for graph in layering.graphs} if layering else {}
    base = next((one for one in document.candidates if one.default and "fp32" in one.candidate), None)
    rows = [
        {
            "candidate": one.candidate,
            "speed_over_fp32": divide(one, base),
            "processes": one.processes,
            "centred_cosine": one.quality,
            "held_out": describe(held.get(one.graph)),
            "mixed": bool(one.graph),
        }
        for one in document.candidates
    ]
    return {
        "model": document.model,
        "first_to_break": layering.first if layering else None,
        "break_alone": list(layering.alone) if layering else [],
        "groups": len(layering.groups) if layering else 0,
        "int8_noise": layering.together.noise if layering and layering.together else None,
        "rows": rows,
        "challenger": document.challenger.candidate if document.challenger else None,
        "over_best_default": describe(document.ratio),
        "verdict": document.verdict,
    }


def divide(one: Candidate, base: Candidate | None) -> float | None:
    """Speed over FP32, by the rounds of the race."""
    return one.speed / base.speed if one.speed and base and base.speed else None


def describe(estimate: Estimate | None) -> str:
    """`0.971 (0.969 to 0.973)`."""
    if estimate is None:
        return ""
    bounds = f" ({estimate.low:.3g} to {estimate.high:.3g})" if estimate.low is not None else ""
    return f"{estimate.value:.3g}{bounds}"


def passes(found: dict[str, object], limit: float) -> bool:
    """Whether a graph in mixed precision keeps the limit and is at least as fast as FP32."""
    rows: list[dict[str, object]] = found["rows"]  # type: ignore[assignment]
    return any(
        row["mixed"] and (row["centred_cosine"] or 0.0) >= limit and (row["speed_over_fp32"] or 0.0) >= 1.0  # type: ignore[operator]
        for row in rows
    )


def main() -> int:
    """Searches the models and prints their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="efficientnet_b0,mobilenet_v3_small")
    parser.add_argument("--engine", default="ort")
    parser.add_argument("--limit", type=float, default=0.95)
    parser.add_argument("--time-budget", default="20m")
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument(
        "--time-limit", type=float, default=3.0, help="seconds of timed calls in a process of the final"
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--data")
    parser.add_argument("--out", type=Path, default=Path("results/mixed"))
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = [show(*search(model, args)) for model in args.models.split(",")]
    if args.json:
        print(json.dumps(found, indent=2))
    for one in found if not args.json else ():
        print(f"\n{one['model']}: {one['groups']} groups; first to break the answers: {one['first_to_break']}")
        for row in one["rows"]:  # type: ignore[attr-defined]
            speed = row["speed_over_fp32"]
            print(
                f"  {row['candidate']:<44} {'' if speed is None else f'{speed:.3f}x'} of FP32 in {row['processes']} "
                f"rounds, held-out centred cosine {row['held_out'] or row['centred_cosine']}"
            )
        print(f"  final: {one['challenger']} over the best default: {one['over_best_default']}, {one['verdict']}")
    return 0 if all(passes(one, args.limit) for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
