"""The rooms of the architecture: what docs/architecture.md draws, and what the sources import.

A drawing is a ```text block. Each of its lines with an arrow names rooms (folders or files) and, after the arrow, what
these may import: names, `all below` (everything on the lines below), or `nothing`. A remark in brackets is left out.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from enginebench.core.features import list_features
from processes import ROOT

SOURCE = ROOT / "src" / "enginebench"
PAGE = ROOT / "docs" / "architecture.md"
INSIDE = ROOT / "tests" / "helpers" / "rooms.md"  # the drawings of single folders
ARROW = "→"
REMARK = re.compile(r"\([^)]*\)")
MODULE = re.compile(r"enginebench(?:\.\w+)+")
# What these import under `if TYPE_CHECKING:` names types and what features bring, and is no import.
DECLARATIONS = ("core/hooks.py", "features/__init__.py")


class Floor(NamedTuple):
    """One line of a drawing: rooms, and what each of them may import."""

    rooms: tuple[str, ...]
    named: tuple[str, ...]
    below: bool  # everything on lower lines, too


class Import(NamedTuple):
    """An import of one of our modules, written as `a.b` for enginebench.a.b; the package itself is `__init__`."""

    file: Path
    line: int
    importer: str
    imported: str


def read_drawing(page: str, heading: str) -> list[Floor]:
    """The drawing under a heading, its lines from the top down."""
    section = re.split(r"^#+ ", page.split(f"\n{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    found = re.search(r"^```text\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found, f"there is no ```text block under {heading}"
    return [read_floor(line) for line in found[1].splitlines() if ARROW in line]


def read_floor(line: str) -> Floor:
    rooms, _, allowed = REMARK.sub("", line).partition(ARROW)
    names = [name.strip() for name in allowed.split(",")]
    assert all(names), f"after its {ARROW}, this line names nothing: {line}"
    named = tuple(name for name in names if name not in ("all below", "nothing"))
    return Floor(tuple(rooms.split()), named, "all below" in names)


def name_module(path: Path, source: Path) -> str:
    return ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")


def find_imports(source: Path) -> list[Import]:
    """Every import of ours by ours, in whatever way it is written; importing `__version__` alone does not count."""
    modules = {name_module(path, source) for path in source.rglob("*.py")}
    return [
        Import(path, line, name_module(path, source), cut_to_module(name, modules))
        for path in sorted(source.rglob("*.py"))
        for line, name in read_imports(path, source)
        if name != "__version__"
    ]


def cut_to_module(name: str, modules: set[str]) -> str:
    """`a.b` of `a.b.Class`; a name that the package itself offers is `__init__`."""
    parts = name.split(".")
    while parts and ".".join(parts) not in modules:
        parts.pop()
    return ".".join(parts) or "__init__"


def read_imports(path: Path, source: Path) -> Iterator[tuple[int, str]]:
    """(line, `a.b.name`) of every import, relative ones and modules named as text (`import_module`) included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if path.relative_to(source).as_posix() in DECLARATIONS:
        tree.body = [node for node in tree.body if not is_for_type_checkers(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = resolve_base(node, path, source)
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_module(node.value, source):
            names = [node.value]
        else:
            continue
        yield from ((node.lineno, n.removeprefix("enginebench.")) for n in names if n.startswith("enginebench."))


def is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def resolve_base(node: ast.ImportFrom, path: Path, source: Path) -> str:
    """The absolute name of what an import is from."""
    if not node.level:
        return node.module or ""
    folder = path.parents[node.level - 1].relative_to(source)
    return ".".join(["enginebench", *folder.parts, *([node.module] if node.module else [])])


def is_module(text: str, source: Path) -> bool:
    if not MODULE.fullmatch(text):
        return False
    path = source.joinpath(*text.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").is_file()


def find_crossings(source: Path) -> set[tuple[str, str]]:
    """(importer, imported) of every import of a feature from outside of it."""
    found = {(i.importer, i.imported) for i in find_imports(source)}
    return {(a, b) for a, b in found if name_feature(b) and name_feature(a) != name_feature(b)}


def name_feature(module: str) -> str:
    """`tune` of `features.tune.race`; "" of what belongs to no feature."""
    return module.split(".")[1] if module.startswith("features.") else ""


def list_lifted() -> set[str]:
    """The features that the page names and that are not there."""
    (listed,) = re.findall(r"^\| `features` \|(.*?):", PAGE.read_text("utf-8"), re.MULTILINE)
    return {*re.findall(r"\w+", listed)} - list_features().keys()


def is_lifted(place: str) -> bool:
    """Whether a file or a module is of a feature that was lifted out."""
    return not list_lifted().isdisjoint(re.split(r"[./]", place))


def find_faults(source: Path, floors: list[Floor], inside: str = "") -> list[str]:
    """What a drawing says and the sources do not do, and the other way round, of the rooms of one folder.

    Args:
        source: the package.
        floors: the drawing.
        inside: the folder that was drawn, as `runs`; "" for the package itself.
    """
    drawn = [room for floor in floors for room in floor.rooms]
    there = list_rooms(source, inside)
    return [
        *(f"{room} is not drawn: add it, above all that it imports" for room in sorted(there - set(drawn))),
        *(f"{room} is drawn and not there" for room in drawn if room not in there),
        *(f"{room} is drawn twice" for room in sorted(set(drawn)) if drawn.count(room) > 1),
        *find_wrong_edges(source, floors, inside),
    ]


def list_rooms(source: Path, inside: str) -> set[str]:
    """The packages and modules of a folder; its own `__init__.py` is a room of the whole package alone."""
    folder = source.joinpath(*inside.split("."))
    files = {path.stem for path in folder.glob("*.py") if path.stem != "__init__" or not inside}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}


def find_wrong_edges(source: Path, floors: list[Floor], inside: str) -> list[str]:
    """Imports that no arrow allows, then arrows that no import uses."""
    faults, used = [], set()
    for found in find_imports(source):
        importer = "__init__" if found.importer == inside else cut_inside(found.importer, inside)
        imported = cut_inside(found.imported, inside)
        room = importer.split(".")[0]
        if not room or imported.split(".")[0] in ("", room):
            continue
        arrow = find_arrow(floors, room, imported)
        if arrow is None:
            faults.append(f"{found.file.relative_to(source)}:{found.line}: {room} imports {imported}")
        used.add((room, arrow))
    for floor in floors:
        idle = [name for name in floor.named if not any((room, name) in used for room in floor.rooms)]
        faults += [f"{' '.join(floor.rooms)} {ARROW} {name}: nothing imports that" for name in idle]
    return list(dict.fromkeys(faults))


def cut_inside(module: str, inside: str) -> str:
    """`b.c` of `a.b.c` inside `a`; "" of a module that is not inside."""
    if inside and not module.startswith(f"{inside}."):
        return ""
    return module.removeprefix(f"{inside}.") if inside else module


def find_arrow(floors: list[Floor], room: str, imported: str) -> str | None:
    """The words of the drawing that let a room import a module; None where there are none."""
    for i, floor in enumerate(floors):
        if room in floor.rooms:
            named = [n for n in floor.named if imported == n or imported.startswith(f"{n}.")]
            below = {other for lower in floors[i + 1 :] for other in lower.rooms}
            return named[0] if named else "all below" if floor.below and imported.split(".")[0] in below else None
    return None
