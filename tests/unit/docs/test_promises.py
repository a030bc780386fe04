"""What a page names in backticks is there: options, files, fields and functions, exit codes, paths."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from enginebench.core import errors
from enginebench.door import program
from processes import ROOT

PAGES = [*sorted(ROOT.glob("docs/*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SKILL.md"))]
SCRIPTS = [*sorted(ROOT.glob("benchmarks/**/*.py")), *sorted(ROOT.glob("tools/*.py"))]
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
FILE = re.compile(
    r"(?<![\w*./-])([\w.-]+)\.(?:json|html|md|csv|png|npz|npy|onnx|pt2|pt|plan|log|toml|yml|txt|py|cpp|so)\b"
)
NAME = re.compile(r"(?<![\w.-])[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b")
# Options of other programs: those that trtexec no longer has, its own that nothing here reads, `jetson_clocks`.
FOREIGN_OPTIONS = {
    *("--fp16", "--bf16", "--int8", "--fp8", "--best", "--layerPrecisions", "--precisionConstraints"),
    *("--tacticSources", "--dumpProfile", "--restore"),
}
# Names of other programs: a function of TensorRT, a tool of Jetson, kernels of oneDNN, a page of OpenVINO.
FOREIGN_NAMES = {
    *("set_dynamic_range", "jetson_clocks", "brgconv_avx512_dw_f32", "ref_any_f32", "validated_model_list")
}
# A file of the reader's, or of another program, in prose; in a block the block's own commands make or read it.
READERS_FILES = {
    *("fp16.plan", "int8.plan", "b.md", "b.log", "c.npz", "net.int8.onnx", "p.plan.json", "libmine.so"),
    "graph-data-ov.json",
}


def list_spans(text: str) -> Iterator[str]:
    """What stands between backticks, each on one line; without the blocks."""
    for found in SPAN.finditer(FENCE.sub("", text)):
        yield " ".join(found[1].split())


def list_verbs(command: click.Command, name: str = "") -> Iterator[tuple[str, set[str]]]:
    """(verb, its options) of the program, with subcommands."""
    yield name, {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for sub in command.list_commands(context):
            if (found := command.get_command(context, sub)) is not None:
                yield from list_verbs(found, f"{name} {sub}".strip())


def read_all(*folders: str) -> str:
    kinds = {".py", ".toml", ".json", ".html", ".txt", ".md"}
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.suffix in kinds]
    files = [path for path in files if path != Path(__file__)]  # which names what is not there
    return "\n".join(path.read_text("utf-8") for path in files)


VERBS = dict(list_verbs(program))
SOURCES = read_all("src", "tools", "benchmarks", "plugins")
WORDS = {*re.findall(r"\w+", SOURCES + read_all("tests") + (ROOT / "Makefile").read_text("utf-8"))}
REPOSITORY = {
    path.name
    for folder in ("", "src", "tests", "docs", "tools", "benchmarks", ".ci", "results")
    for path in ((ROOT / folder).rglob("*") if folder else ROOT.iterdir())
}


def find_verb(span: str) -> str:
    """The verb that a span begins with, as in `run --quick`; "" for none."""
    words = span.removeprefix("$ ").removeprefix("enginebench ").split()
    return next((name for n in (2, 1) if (name := " ".join(words[:n])) in VERBS), "")


def list_faults(text: str) -> Iterator[str]:
    """What a page names that is not there."""
    everywhere = set[str]().union(*VERBS.values())
    for span in list_spans(text):
        verb = find_verb(span)
        script = next((path for path in SCRIPTS if str(path.relative_to(ROOT)) in span), None)
        for option in OPTION.findall(span):
            if script is not None:
                there = re.search(rf"{option}\b", script.read_text("utf-8")) is not None
            elif verb and option in everywhere:
                there = option in VERBS[verb]
            else:
                field = option.removeprefix("--").replace("-", "_")  # of a package that may not be installed here
                there = option in everywhere | FOREIGN_OPTIONS or bool(re.search(rf"{option}\b|\b{field}: ", SOURCES))
            if not there:
                yield f"`{span}`: no option {option}"
        for found in FILE.finditer(span):
            stem = found[1].rpartition(".")[2]
            placeholder = stem.upper() == stem
            if not (placeholder or found[0] in REPOSITORY | READERS_FILES or {*re.findall(r"\w+", found[1])} <= WORDS):
                yield f"`{span}`: nothing writes or reads {found[0]}"
        for name in NAME.findall(span):
            spellings = {name, name.replace("_", "")}  # keys of a timing file are read in either
            if not spellings & (WORDS | FOREIGN_NAMES) and not {f"{name}.py", f"{name}.txt"} & REPOSITORY:
                yield f"`{span}`: no field, function or option {name}"
        for path in re.findall(r"(?<![\w./-])(?:docs|src|tests|tools|benchmarks|results)/[\w./-]*\w", span):
            if not path.startswith("results/") and not (ROOT / path.removesuffix("/NAME")).exists():
                yield f"`{span}`: no file {path}"
    codes = {kind.exit_code for kind in vars(errors).values() if hasattr(kind, "exit_code")} | {0, 1, 130}
    for code in re.findall(r"exit code (\d+)", " ".join(text.split())):
        if int(code) not in codes:
            yield f"exit code {code}: nothing ends with it"


def test_what_a_page_names_is_there() -> None:
    faults = [f"{page.relative_to(ROOT)}: {fault}" for page in PAGES for fault in list_faults(page.read_text("utf-8"))]
    assert not faults, "\n".join(faults)


def test_what_is_not_there_is_found() -> None:
    text = """
Give `run --quick --find-capacity` or `--fastest-of-all`, `python benchmarks/tune.py --lap 3`; it writes `report.html`
and `no_such_file.json` with the field `p50_parsecs`, as `tests/unit/nowhere.py` shows. It ends with exit code 7.
"""
    assert [fault.partition(": ")[2] for fault in list_faults(text)] == [
        "no option --find-capacity",
        "no option --fastest-of-all",
        "no option --lap",
        "nothing writes or reads no_such_file.json",
        "no field, function or option no_such_file",
        "no field, function or option p50_parsecs",
        "no file tests/unit/nowhere.py",
        "nothing ends with it",
    ]


def test_what_other_programs_have_is_still_named() -> None:
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    assert not [name for name in (*FOREIGN_OPTIONS, *FOREIGN_NAMES, *READERS_FILES) if name not in text]


def test_a_page_that_is_linked_is_there() -> None:
    links = [
        (page, link)
        for page in PAGES
        for link in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", FENCE.sub("", page.read_text("utf-8")))
    ]
    assert not [f"{page.name}: {link}" for page, link in links if not Path(page.parent / link).exists()]
    assert len(links) > 100
