"""Count the concepts that a reader of the project has to hold, each figure beside its limit.

    python tools/budgets.py

`limit` is what was agreed on. `held` is what a figure may not pass today, where it is still above its limit: lower it
with each step towards the limit. Lines are printed for information and limit nothing: a longer message, name or
comment that its reader needs is never a cost. Exit code 1: a figure is above both.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
PLUGINS = ROOT / "plugins"
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


class Budget(NamedTuple):
    what: str
    count: int
    limit: int
    held: int | None = None  # None: the limit itself
    where: str = ""


def list_files(folder: Path) -> list[Path]:
    """List the sources in a folder, without the copies that `pip install ./plugins/NAME` leaves in its `build`."""
    left_out = {"__pycache__", "build"}
    return sorted(path for path in folder.rglob("*.py") if left_out.isdisjoint(path.relative_to(ROOT).parts))


def parse_files(paths: list[Path]) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def list_functions(trees: dict[Path, ast.Module]) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def measure_longest(trees: dict[Path, ast.Module]) -> tuple[int, str]:
    """Return (lines, place) of the longest function."""
    return max(((node.end_lineno or node.lineno) - node.lineno + 1, where) for where, node in list_functions(trees))


def measure_widest(trees: dict[Path, ast.Module]) -> tuple[int, str]:
    """Return (parameters, place) of the function that takes the most."""
    return max(
        (len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]), where)
        for where, node in list_functions(trees)
    )


def count_options(trees: dict[Path, ast.Module]) -> dict[str, int]:
    """Count the fields declared with an `Opt`, by the name of the class that declares them."""
    counts: dict[str, int] = defaultdict(int)
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                counts[node.name] += sum(isinstance(s, ast.AnnAssign) and _declares_option(s) for s in node.body)
    return counts


def _declares_option(statement: ast.AnnAssign) -> bool:
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return any(isinstance(call.func, ast.Name) and call.func.id == "Opt" for call in calls)


def count_fields(trees: dict[Path, ast.Module], path: str, name: str) -> int:
    """Count the annotated fields of one record, without those that it inherits."""
    for node in ast.walk(trees[SRC / "enginebench" / path]):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return sum(isinstance(statement, ast.AnnAssign) for statement in node.body)
    raise SystemExit(f"tools/budgets.py: {path} defines no record {name}; correct the table in list_budgets")


def count_templates(trees: dict[Path, ast.Module]) -> int:
    """Count the sentences that a warning can be told in."""
    for node in ast.walk(trees[SRC / "enginebench" / "core" / "warnings.py"]):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "TEMPLATES":
            assert isinstance(node.value, ast.Dict)
            return len(node.value.keys)
    raise SystemExit("tools/budgets.py: core/warnings.py defines no TEMPLATES; correct count_templates")


def list_shared_names(trees: dict[Path, ast.Module]) -> list[str]:
    """List the public functions and classes whose name more than one module defines."""
    places: dict[str, int] = defaultdict(int)
    for tree in trees.values():
        names = {node.name for node in tree.body if isinstance(node, (*Function, ast.ClassDef))}
        for name in names:
            places[name] += not name.startswith("_")
    return sorted(name for name, count in places.items() if count > 1)


def list_budgets() -> list[Budget]:
    trees = parse_files([*list_files(SRC), *(path for path in list_files(PLUGINS) if "tests" not in path.parts)])
    text = "\n".join(path.read_text(encoding="utf-8") for path in trees)
    unformatted = sum(
        path.read_text(encoding="utf-8").count("# fmt: skip")
        for folder in ("src", "plugins", "tests", "benchmarks")
        for path in list_files(ROOT / folder)
    )
    places = ("tests/golden/sessions/*.txt", "tests/unit/features/*/*.txt", "plugins/*/tests/*.txt")
    sessions = [path for place in places for path in ROOT.glob(place)]
    pinned = sum(line.startswith("$ ") for path in sessions for line in path.read_text("utf-8").splitlines())
    pictures = len([path for path in ROOT.glob("tests/data/stored/*.txt") if path.name != "verdicts.txt"])
    options = count_options(trees)
    longest, widest = measure_longest(trees), measure_widest(trees)
    return [
        Budget("options declared", sum(options.values()), 205),
        Budget("fields of Row", count_fields(trees, "report/run/rows.py", "Row"), 45),
        Budget("fields of Entry", count_fields(trees, "core/entry.py", "Entry"), 24),
        Budget("warning templates", count_templates(trees), 75),
        Budget("dict[str, Any]", text.count("dict[str, Any]"), 50),
        Budget("functions and classes of one name", len(list_shared_names(trees)), 60),
        Budget("fmt: skip, tests and benchmarks too", unformatted, 15),
        Budget("commands in golden sessions", pinned, 150),
        Budget("stored pictures", pictures, 6),
        Budget("lines of the longest function", longest[0], 80, None, longest[1]),
        Budget("most parameters", widest[0], 12, None, widest[1]),
    ]


def count_lines(folder: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in list_files(folder))


def main() -> int:
    budgets = list_budgets()
    for b in budgets:
        over = "" if b.count <= b.limit else f"  over by {b.count - b.limit:,}"
        print(f"{b.what:36} {b.count:6,}  limit {b.limit:6,}{over}{'  ' + b.where if b.where else ''}")
    print(f"for information: {count_lines(SRC):,} lines of sources, {count_lines(ROOT / 'tests'):,} of tests")
    failed = [(b, allowed) for b in budgets if b.count > (allowed := max(b.limit, b.held or 0))]
    for b, allowed in failed:
        print(f"FAILED: {b.what}: {b.count:,}, and at most {allowed:,} today")
    if failed:
        print("Do without the new concept, or raise `held` in tools/budgets.py and say why in the commit")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
