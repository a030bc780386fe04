"""Imports point one way: the drawings of docs/architecture.md and of rooms.md say which are allowed."""

import ast
from pathlib import Path

import pytest

from enginebench.engines.registry import ENTRIES
from processes import ROOT
from rooms import INSIDE, PAGE, SOURCE, find_crossings, find_faults, find_imports, list_rooms, read_drawing, read_floor

# Heading of the page -> the folder that the drawing below it shows.
DRAWINGS = {
    "# Architecture": "",
    "### Inside runs": "runs",
    "### Inside engines": "engines",
    "### Inside report": "report",
}
PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py"))


@pytest.mark.parametrize(("heading", "folder"), DRAWINGS.items(), ids=lambda text: text or "enginebench")
def test_the_sources_are_built_as_drawn(heading: str, folder: str) -> None:
    page = "\n" + (INSIDE if folder else PAGE).read_text(encoding="utf-8")
    faults = find_faults(SOURCE, read_drawing(page, heading), folder)
    where = f"{(INSIDE if folder else PAGE).relative_to(ROOT)}, below {heading!r}, draws what may import what"
    assert not faults, "\n".join((where, *faults))


def test_nothing_crosses_the_border_of_a_feature() -> None:
    """The names for type checkers in `features/__init__.py` are no imports."""
    assert find_crossings(SOURCE) == set()


def test_the_kernel_knows_engines_by_the_registry_and_what_they_may_offer() -> None:
    found = [i for i in find_imports(SOURCE) if i.importer.split(".")[0] not in ("engines", "features")]
    reached = {i.imported for i in found if i.imported.split(".")[0] == "engines"}
    assert reached == {"engines.registry", "engines.abilities", "engines.refusals"}


def test_a_file_of_an_engine_is_named_in_its_own_folder_alone() -> None:
    engines = {entry.module.removeprefix("enginebench.") for entry in ENTRIES.values()}
    found = [i for i in find_imports(SOURCE) if i.imported in engines]
    strangers = {i.importer for i in found if i.importer.rpartition(".")[0] != i.imported.rpartition(".")[0]}
    assert strangers == set()  # the registry imports the module that an entry names


@pytest.mark.parametrize("layer", ["stats", "verbs", "report"])
def test_a_layer_above_the_engines_names_none(layer: str) -> None:
    """What an engine alone knows is in its entry; help texts, names of features and of options may name engines."""
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {text!r}"
        for path in sorted((SOURCE / layer).rglob("*.py"))
        for line, text in list_texts(ast.parse(path.read_text(encoding="utf-8")))
        if text.partition(":")[0] in ENTRIES
    ]
    assert found == []


def test_the_name_of_an_engine_in_a_condition_is_seen() -> None:
    code = 'a = Opt("ort", "ort", feature="ort")\nif name == "ort" or name in ("x", "openvino:a=b"):\n    o["ort"]'
    assert {text for _, text in list_texts(ast.parse(code))} == {"ort", "x", "openvino:a=b"}


def list_texts(tree: ast.AST) -> list[tuple[int, str]]:
    """Every text of a file with its line, but those of declarations of options and of keys."""
    passed_over: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Opt":
            passed_over |= {id(inside) for inside in ast.walk(node)}
        elif isinstance(node, ast.Subscript):
            passed_over |= {id(inside) for inside in ast.walk(node.slice)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in passed_over)
    return [(node.lineno, node.value) for node in texts if isinstance(node.value, str)]


def test_the_seam_is_at_most_ten_protocols() -> None:
    tree = ast.parse((SOURCE / "core" / "protocols.py").read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert 0 < len(classes) <= 10, [node.name for node in classes]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.relative_to(SOURCE.parent).as_posix())
def test_every_room_says_what_it_is(package: Path) -> None:
    assert ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))


def test_a_room_fits_a_screen() -> None:
    """A reader finds the file that he needs by its name, among 30 at most."""
    counts = {path: len(list_rooms(SOURCE, path)) for path in map(name_folder, PACKAGES)}
    assert {path: count for path, count in counts.items() if count > 30} == {}
    assert max(counts.values()) > 20  # the count sees what is there


def name_folder(package: Path) -> str:
    return "" if package == SOURCE else ".".join(package.relative_to(SOURCE).parts)


FLOORS = [
    read_floor("cli → all below"),
    read_floor("models   report (of runs) → core.records"),
    read_floor("core → nothing"),
]


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A package as FLOORS draws it."""
    for room in ("cli", "models", "report", "core"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").touch()
    (tmp_path / "core" / "records.py").touch()
    (tmp_path / "report" / "rows.py").write_text("from enginebench.core.records import Result\n")
    return tmp_path


EDGE = "core/bad.py:1: core imports models"
WRITTEN = (
    "from enginebench.models import zoo",
    "import enginebench.models.zoo",
    "from .. import models",
    "MODULE = 'enginebench.models.zoo'",
)
# What stands in which file of the house, below which drawing, and the faults of that.
DRAWN_OTHERWISE = {
    "of all below": [*FLOORS[:1], read_floor("report models → all below"), *FLOORS[2:]],
    "an attic": [*FLOORS, read_floor("attic core → nothing")],
}
FAULTS = [
    ("core/records.py", "", "", []),
    *(("core/bad.py", line, "", [EDGE]) for line in WRITTEN),
    ("report/page.py", "from enginebench.core.bad import E", "", ["report/page.py:1: report imports core.bad"]),
    (
        "models/zoo.py",
        "import enginebench.core\nimport enginebench.report\nimport enginebench.cli",
        "of all below",
        ["models/zoo.py:2: models imports report", "models/zoo.py:3: models imports cli"],
    ),
    ("cellar.py", "", "", ["cellar is not drawn: add it, above all that it imports"]),
    ("core/records.py", "", "an attic", ["attic is drawn and not there", "core is drawn twice"]),
    ("report/rows.py", "", "", ["models report → core.records: nothing imports that"]),
]


@pytest.mark.parametrize(("file", "text", "drawn", "faults"), FAULTS)
def test_what_is_built_otherwise_than_drawn_is_named(house, file, text, drawn, faults) -> None:
    (house / "models" / "zoo.py").touch()
    (house / "core" / "bad.py").touch()
    (house / file).write_text(f"{text}\n")
    found = [
        fault.replace("core imports models.zoo", "core imports models")
        for fault in find_faults(house, DRAWN_OTHERWISE.get(drawn, FLOORS))
    ]
    assert found == faults


def test_features_import_the_kernel_and_no_other_feature(house: Path) -> None:
    for name in ("load", "tune"):
        (house / "features" / name).mkdir(parents=True)
        (house / "features" / name / "__init__.py").touch()
        (house / "features" / name / "verb.py").write_text("from enginebench.core.records import Result\n")
    (house / "features" / "__init__.py").write_text("if TYPE_CHECKING:\n    import enginebench.features.load.verb\n")
    assert find_crossings(house) == set()
    (house / "features" / "tune" / "track.py").write_text("from enginebench.features.load import verb\n")
    (house / "models" / "zoo.py").write_text("def later():\n    from enginebench.features.tune.track import lap\n")
    assert find_crossings(house) == {
        ("features.tune.track", "features.load.verb"),
        ("models.zoo", "features.tune.track"),
    }


def test_tests_lie_in_the_tier_and_folder_that_run_them() -> None:
    """A test that lies elsewhere would run in no tier, or not before its feature is looked for."""
    tests = ROOT / "tests"
    tiers = {path.relative_to(tests).parts[0] for path in tests.rglob("test_*.py")}
    assert tiers <= {"unit", "smoke", "engines", "e2e", "fpga", "golden"}
    unit = {path.relative_to(tests / "unit").parts[0] for path in tests.joinpath("unit").rglob("test_*.py")}
    folders = {"core", "engines", "models", "measure", "stats", "run", "report", "verbs", "features", "docs"}
    assert {name for name in unit if not name.endswith(".py")} <= folders
