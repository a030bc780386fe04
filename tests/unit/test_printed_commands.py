"""Commands that are printed run when they are typed: every one that a source, a page or a session holds is parsed."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from enginebench.core.commands import VERB, list_own_options
from enginebench.core.warnings import TEMPLATES
from enginebench.door import VERBS
from printed_commands import (
    NAMED,
    OPTION,
    cut_command,
    find_command,
    find_refusal,
    list_foreign,
    list_own,
    list_printed_commands,
    parse,
)
from processes import ROOT

OWN = sorted((ROOT / "src" / "enginebench").rglob("*.py"))
SOURCES = [*OWN, *sorted(ROOT.glob("plugins/*/src/**/*.py"))]
KINDS_OF_SESSIONS = ("tests/golden/sessions/*.txt", "tests/unit/features/*/*.txt", "plugins/*/tests/*.txt")
SESSIONS = sorted(path for kind in KINDS_OF_SESSIONS for path in ROOT.glob(kind))
PICTURES = sorted([*ROOT.glob("tests/data/stored/*.txt"), *ROOT.glob("tests/unit/report/snapshots.txt")])
PAGES = [ROOT / "README.md", ROOT / "SKILL.md", *sorted(ROOT.glob("docs/*.md"))]
# What stands in for a value in a text that is filled in later.
FILLED = "VALUE"


def list_texts(path: Path) -> Iterator[str]:
    """The literal texts of a source, with something in place of what is filled in."""
    nodes = list(ast.walk(ast.parse(path.read_bytes())))
    parts_of_others = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts_of_others:
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else FILLED for part in node.values)
            yield "".join(map(str, parts))


def _unfold(text: str) -> str:
    """A page with what continues a command, or stands between backticks, on one line."""
    text = text.replace("\\\n", " ")
    return re.sub(r"(?<!`)`([^`]+)`(?!`)", lambda found: found[0].replace("\n", " "), text)


def list_commands() -> Iterator[tuple[str, str]]:
    """(where, the text from `enginebench VERB` on) of every command that is printed or documented."""
    for name, template in TEMPLATES.items():
        for text in (template.message, template.advice):
            yield from ((f"warning {name}", found[0]) for found in NAMED.finditer(text))
    for path in SOURCES:
        for text in list_texts(path):
            yield from ((str(path.relative_to(ROOT)), found[0]) for found in NAMED.finditer(text))
    for path in (*SESSIONS, *PICTURES):
        lines = path.read_text("utf-8").splitlines()
        printed = [line for line in lines if path in PICTURES or line[:1] in ("|", "!")]
        yield from ((str(path.relative_to(ROOT)), text) for text in list_printed_commands(printed))
    for path in PAGES:
        text = _unfold(path.read_text("utf-8"))
        yield from ((str(path.relative_to(ROOT)), found[0]) for found in NAMED.finditer(text))


def test_every_printed_command_is_one_that_the_program_takes() -> None:
    """What the commands of the sessions print when they run is looked at there (tests/golden)."""
    commands = list(list_commands())
    faults = [f"{where}: {fault}" for where, text in commands if (fault := find_refusal(text))]
    assert not faults, "\n".join(dict.fromkeys(faults))
    assert len(commands) > 350  # the harvest sees what is there


def list_literal_commands(path: Path) -> Iterator[str]:
    """The commands with arguments that a source writes out itself, not in a docstring or in a text of --help."""
    tree = ast.parse(path.read_bytes())
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
    passed = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    passed |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "help"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            for found in NAMED.finditer(node.value):
                words = cut_command(found[0])
                if len(words) > find_command(words)[1]:
                    yield shlex.join(words)


def test_every_command_with_an_argument_comes_from_the_function_that_makes_commands() -> None:
    """A verb alone is a name. What a bundle prints is not ours to format: it needs no EngineBench."""
    own = [path for path in SOURCES if "as-shipped" not in path.parts]
    literal = [f"{path.relative_to(ROOT)}: {command}" for path in own for command in list_literal_commands(path)]
    assert not literal, "\n".join(literal)


def test_a_literal_command_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text('"""enginebench run MODEL"""\na = f"{1}: enginebench export MODEL --out {2}; enginebench run"\n')
    assert list(list_literal_commands(source)) == ["export MODEL --out"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("enginebench quantize GRAPH --to int8 --calib FILE, or another", "quantize GRAPH --to int8 --calib FILE"),
        ("enginebench roofline again on an idle machine", "roofline"),
        ("enginebench env make NAME PACKAGE==VERSION", "env make NAME PACKAGE==VERSION"),
        ("enginebench deliver 'out/mel ä' --row a --out b", "deliver 'out/mel ä' --row a --out b"),
    ],
)
def test_a_command_ends_where_the_sentence_goes_on(text: str, words: str) -> None:
    assert cut_command(text) == shlex.split(words)


# What only these verbs can print; all other warnings come with any verb that measures.
ONLY = {
    "beats_bound": ("roofline",),
    "external_preprocess": ("calibrate",),
    "generator_late": ("load",),
    "overload": ("load",),
    "shared_cores": ("load",),
    "unproved_precision.plan": ("drift", "report"),
    "unsteady": ("load",),
    "chosen_shapes": ("run", "bench", "export", "tune", "load"),
    "environment.suboptimal_plan": ("build", "run", "bench"),
    "environment": ("bench",),
    "not_watched": (),  # --pid is docker's
    "outputs_differ.export": ("export",),
    "outputs_not_compared": ("run", "drift", "tune", "export", "bench"),
}
MEASURING = ("run", "bench", "tune", "sweep", "bisect", "load", "drift", "accuracy", "profile", "stages", "infer")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_warning_names_options_of_the_verb_at_work(name: str) -> None:
    template = TEMPLATES[name]
    verbs = ONLY.get(name, ONLY.get(name.partition(".")[0], MEASURING))
    for verb in verbs:
        token = VERB.set(verb)
        try:
            options = list_own_options(template.options)
        finally:
            VERB.reset(token)
        text = template.message + " " + (template.advice if options or not template.options else template.otherwise)
        own = list_own([verb])
        assert set(options) <= own
        assert not list_foreign(text, own | set(template.options)), verb
    assert not OPTION.findall(template.otherwise)


def list_verbs_of(path: Path) -> list[str]:
    """The verbs that a source is about: of a file of `verbs`, and of a feature with one."""
    inner = path.relative_to(ROOT / "src" / "enginebench").parts
    features = {"versions": ["env", "bisect"], "load": ["load"], "roofline": ["roofline"], "sweep": ["sweep"]}
    features |= {"tune": ["tune"], "trtexec": ["parse", "build", "bench", "run"]}
    if inner[0] == "verbs" and path.stem in VERBS:
        return [path.stem]
    return features.get(inner[1], []) if inner[0] == "features" and len(inner) > 2 else []


# Sources that write the command lines of other programs, and hints of verbs that ask a feature.
OF_OTHERS = ("env.py", "synth.py", "servers.py", "command.py", "ray_fleet.py", "log.py")
# Names of options that such a source reads, or hands to a verb that has them: they are no advice.
HANDED_ON = {"--by-time", "--cache", "--trtexec", "--prices", "--between", "--metric", "--find-capacity", "--engines"}


def test_the_sources_of_a_verb_advise_options_that_it_has() -> None:
    faults = []
    for path in OWN:
        verbs = list_verbs_of(path)
        own = set().union(*(list_own([verb]) for verb in verbs)) | HANDED_ON
        if not verbs or path.name in OF_OTHERS:
            continue
        for text in list_texts(path):
            if " " in text.strip() and not text.strip().startswith("--"):
                faults += [f"{path.name}: {name}: {text}" for name in list_foreign(text, own)]
    assert not faults, "\n".join(faults)


def test_an_option_that_a_verb_lacks_is_seen() -> None:
    assert list_foreign("give --data DIR", list_own(["drift"])) == ["--data"]
    assert list_foreign("give --data DIR", list_own(["run"])) == []
    assert list_foreign("enginebench run m --data DIR, or `run --data DIR`", list_own(["drift"])) == []

    with pytest.raises(click.NoSuchOption):
        parse(["drift", "REF", "CAND", "--data", "DIR"])
