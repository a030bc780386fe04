"""How large the project is, each figure beside its limit.

    python tools/budgets.py

`limit` is what was agreed on; `held` is what a figure may not pass today where it is still above its limit. It is
lowered with each cut, and raised only by a new capability. Why some limits are missed, and what was tried:
CONTRIBUTING.md, "Size". Exit code 1: a figure is above both.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
ENTRY = "enginebench.verbs.run"
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Budget(NamedTuple):
    what: str
    found: int
    limit: int
    held: int | None = None  # None: the limit itself
    where: str = ""


def list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def count_lines(paths: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def count_code(path: Path) -> int:
    """Lines that hold code: no blank ones, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SKIPPED:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def find_file(module: str) -> Path | None:
    base = SRC.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def list_imports(path: Path) -> Iterator[str]:
    """Modules of ours that a file imports anywhere, packages on the way to them included."""
    package = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    inside = package if path.name == "__init__.py" else package.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            up = inside.split(".")[: len(inside.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1) if parts[0] == "enginebench")


def find_closure(entry: str) -> set[Path]:
    """All files that the entry needs by imports, inside functions too, but for the package's own lazy names."""
    found: set[Path] = set()
    waiting = [entry]
    while waiting:
        path = find_file(waiting.pop())
        if path and path not in found and path != SRC / "enginebench" / "__init__.py":
            found.add(path)
            waiting += list_imports(path)
    return found


def measure_functions(paths: list[Path]) -> tuple[tuple[int, str], tuple[int, str]]:
    """(lines of the longest function, where), (parameters of the one with most, where)."""
    longest, widest = (0, ""), (0, "")
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                where = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
                longest = max(longest, ((node.end_lineno or node.lineno) - node.lineno + 1, where))
                given = node.args
                widest = max(widest, (len([*given.posonlyargs, *given.args, *given.kwonlyargs]), where))
    return longest, widest


def list_budgets() -> list[Budget]:
    src, tests = list_files(SRC), list_files(ROOT / "tests")
    longest, widest = measure_functions(src)
    return [
        Budget("src, lines", count_lines(src), 53_000, 62_373),
        Budget("src, lines of code", sum(map(count_code, src)), 37_000, 45_466),
        Budget("tests, lines", count_lines(tests), 34_000, 39_854),
        Budget("import closure of run, lines", count_lines(sorted(find_closure(ENTRY))), 30_000),
        Budget("longest function, lines", longest[0], 80, None, longest[1]),
        Budget("most parameters", widest[0], 12, None, widest[1]),
    ]


def main() -> int:
    budgets = list_budgets()
    for b in budgets:
        over = "" if b.found <= b.limit else f"  over by {b.found - b.limit:,}"
        print(f"{b.what:30} {b.found:8,}  limit {b.limit:8,}{over}{'  ' + b.where if b.where else ''}")
    if any(b.found > b.limit for b in budgets):
        print("Why, and what was tried: CONTRIBUTING.md, Size")
    failed = [(b, allowed) for b in budgets if b.found > (allowed := max(b.limit, b.held or 0))]
    for b, allowed in failed:
        print(f"FAILED: {b.what}: {b.found - allowed:,} above {allowed:,}, which it may not pass today")
    if failed:
        print("Take out as much elsewhere; for a new capability raise `held` in tools/budgets.py and say why")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
