"""The words: help that shows how, docstrings that say what is checked, one spelling."""

import ast
import inspect
import io
import re
import shlex
import tokenize
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from enginebench.door import program as group
from processes import ROOT

OWN = sorted((ROOT / "src").rglob("*.py"))
SOURCES = [*OWN, *sorted(ROOT.glob("plugins/*/src/**/*.py"))]
PROSE = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SKILL.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
# The folder inside a run keeps the name that stored runs have: one constant, and the pages that show it.
FOLDER = re.compile(r'^ARTIFACTS = "artefacts"|`(?:\w/)?artefacts/')
FOREIGN = re.compile(r"\bparted (by|with)\b|artefact", re.IGNORECASE)
# What users read says it in the field's words: outputs, warning, interleaved, trial, fake, interface, peak, untrusted.
REPLACED = re.compile(
    r"\b(answers?|answered|doubts?|caveats?|in turns|repetitions?|stand-ins?|seam|ceilings?|told apart|"
    r"strangers?|whoever|(is|are) (told|said)|packed weights|"
    r"open ax[ei]s|shares? of|(stored|no|this|each|a|the) rows?)\b",
    re.IGNORECASE,
)
# Code, links and quoted output keep their names, and so do the tables of fields in docs/cli.md.
QUOTED = re.compile(
    r"^```.*?^```$|<!-- (?:rows|result).*?<!-- end -->|`+[^`]*`+|\]\([^)]*\)|^## JSON documents.*?(?=^## |\Z)",
    re.M | re.S,
)


def list_commands(command: click.Command, words: str) -> Iterator[tuple[str, click.Command]]:
    """A command and those below it, by their words."""
    yield words, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from list_commands(inner, f"{words} {name}")


CONTEXT = click.Context(group)
# Of the packages in plugins/, too, where they are installed.
COMMANDS = {
    words: found
    for verb in group.list_commands(CONTEXT)
    if (command := group.get_command(CONTEXT, verb)) is not None
    for words, found in list_commands(command, verb)
}


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that `words` call, and the arguments that it gets."""
    command: click.Command = group
    while isinstance(command, click.Group):
        inner = command.get_command(click.Context(command), words[0])
        assert inner is not None, words
        command, words = inner, words[1:]
    return command, words


@pytest.mark.parametrize("words", ["", *COMMANDS])
def test_help_is_a_sentence_and_then_an_example_that_parses(words: str) -> None:
    command = COMMANDS[words] if words else group
    sentence, example, *_ = inspect.cleandoc(command.help or "").split("\n\n")
    assert re.fullmatch(r"[A-Z][^.]*(\.\w[^.]*)*\.", " ".join(sentence.split())), sentence
    assert example.startswith("Example: enginebench ") and len(example) <= 78, example
    called, arguments = find_command(shlex.split(example)[2:])
    assert called is command or isinstance(command, click.Group)
    called.make_context("enginebench", arguments)  # raises where an option or an argument does not exist


@pytest.mark.parametrize("words", COMMANDS)
def test_every_option_has_a_help_text(words: str) -> None:
    options = [p for p in COMMANDS[words].params if isinstance(p, click.Option)]
    assert [option.name for option in options if not option.help] == []
    assert [option.help for option in options if re.match(r"Of |The same as ", option.help or "")] == []


def find_docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_docstrings_of_checks_say_what_is_checked() -> None:
    found = [text for path in SOURCES for text in find_docstrings(path)]
    assert [text.splitlines()[0] for text in found if re.match(r"Returns (if|unless)\b", text)] == []


# Words that do not say what a value holds: `place` stood for an index, a path, a device, an environment, a position in
# a document. A name may contain one (`known_good`), but not consist of it.
HOLLOW = re.compile(
    r"_*(absorb|answer(ed|s)?|asked|caveats?|ceilings?|doubts?|enter|found|given|how|judge(d|ment)?|known|repetitions?|"
    r"said|standing|take_up|tell|told|weigh)"
)
# Words of an older vocabulary, also within a name: an output or a response, a warning, a trial, a peak.
FORMER = re.compile(r"(^|_)(answer(s|ed)?|caveats?|doubts?|doubtful|repetitions?|ceilings?|said|told|standings?)(_|$)")
WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Names of the public interface: `run(...).answer`, `bench(...).answer`, `infer(net, given)`, `ParseError.found`.
PUBLIC = {"runs.py": "answer", "benches.py": "answer", "infer.py": "given", "errors.py": "found"}
# A clause without a subject ("What a node says of itself") in place of the result ("The document of a node").
CLAUSE = re.compile(r"(What|How|Why|That|Which|Who|Whose|Where|When)\b")


def find_names(path: Path) -> Iterator[str]:
    """The names that a module gives to values, parameters, fields, functions and classes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def test_names_say_what_they_hold() -> None:
    # Those of plugins/fpga are still to be read.
    hollow = [(path.name, name) for path in OWN for name in find_names(path) if HOLLOW.fullmatch(name)]
    assert [(file, name) for file, name in hollow if PUBLIC.get(file) != name] == []


def test_names_have_no_word_of_the_former_vocabulary() -> None:
    names = {(path.name, name) for path in OWN for name in (path.stem, *find_names(path))}
    former = [(file, name) for file, name in names if FORMER.search(WORD_START.sub("_", name).lower())]
    assert [(file, name) for file, name in former if PUBLIC.get(file) != name] == []


def test_docstrings_begin_with_the_result_or_what_is_done() -> None:
    openings = [f"{path.name}: {text.splitlines()[0]}" for path in SOURCES for text in find_docstrings(path) if text]
    assert [text for text in openings if CLAUSE.match(text.partition(": ")[2])] == []


# Of the words that users do not read any more, those that no docstring or comment needs in another sense.
FORMER_PROSE = re.compile(
    r"\b(answers?|answered|caveats?|doubts?|in turns|packed weights|repetitions?|seam|stand-ins?|strangers?|told|"
    r"whoever)\b",
    re.IGNORECASE,
)


def find_prose(text: str) -> Iterator[str]:
    """The lines of docstrings and comments."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or token.string.startswith('"""'):
            yield from token.string.splitlines()


def test_docstrings_and_comments_have_the_words_that_users_read() -> None:
    texts = {path: path.read_text("utf-8") for path in OWN}
    suspects = {path: text for path, text in texts.items() if FORMER_PROSE.search(text)}
    prose = [f"{path.name}: {line.strip()}" for path, text in suspects.items() for line in find_prose(text)]
    assert [line for line in prose if FORMER_PROSE.search(line)] == []


def test_one_spelling_in_code_and_pages() -> None:
    lines = [(path, line) for path in (*SOURCES, *PROSE) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [f"{path.name}: {line}" for path, line in lines if FOREIGN.search(line) and not FOLDER.search(line)] == []


def find_texts(path: Path) -> Iterator[str]:
    """The texts of a module that are sentences, or parts of them; its docstrings are not for users."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = set(find_docstrings(path))
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if " " in text.strip() and inspect.cleandoc(text) not in docstrings:
            yield text


@pytest.mark.parametrize("path", [path for path in PROSE if path.name != "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_pages_use_the_words_of_the_field(path: Path) -> None:
    text = QUOTED.sub("", path.read_text(encoding="utf-8"))
    assert [line for line in text.splitlines() if REPLACED.search(line)] == []


def test_messages_and_help_use_the_words_of_the_field() -> None:
    found = [f"{path.name}: {text}" for path in SOURCES for text in find_texts(path) if REPLACED.search(text)]
    found += [f"{words}: {c.help}" for words, c in COMMANDS.items() if REPLACED.search(QUOTED.sub("", c.help or ""))]
    assert found == []


def test_bold_openings_of_paragraphs_are_bold_and_no_more() -> None:
    lines = [(path, line) for path in PROSE for line in path.read_text(encoding="utf-8").splitlines()]
    assert [f"{path.name}: {line}" for path, line in lines if re.match(r"\*{3,}\w", line)] == []
