"""Commands that are printed run when they are typed: every one that a source, a page or a session holds is parsed."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from enginebench import options as opts
from enginebench.core.commands import READERS, VERB, list_own_options
from enginebench.core.warnings import TEMPLATES
from enginebench.door import VERBS, program
from processes import ROOT

SOURCES = sorted((ROOT / "src" / "enginebench").rglob("*.py"))
SESSIONS = sorted([*ROOT.glob("tests/golden/expected/*.txt"), *ROOT.glob("tests/unit/features/*/*.txt")])
STORED = sorted(ROOT.glob("tests/data/stored/*.txt"))
PAGES = [ROOT / "README.md", ROOT / "SKILL.md", *sorted(ROOT.glob("docs/*.md"))]
NAMED = re.compile(rf"(?<![\w/.@-])enginebench(?: +(?:{'|'.join(VERBS)}))(?![\w-])[^`\n]*")
# What stands in for a value in a text that is filled in later.
FILLED = "VALUE"
# A word of a command: an option, a placeholder, a path, a pair; not a word of the sentence around it.
WORD = re.compile(r"(--?[a-z0-9][a-z0-9-]*(=.*)?|[A-Z0-9_.|]+|.*[./:=@~'\"*].*|\d+)")


def find_command(words: list[str]) -> tuple[click.Command, int]:
    """The command that words after `enginebench` call, and how many of them name it."""
    command = program.get_command(click.Context(program), words[0])
    assert command is not None, words
    if isinstance(command, click.Group) and len(words) > 1 and words[1] in command.commands:
        return command.commands[words[1]], 2
    return command, 1


def cut_command(text: str) -> list[str]:
    """The words of the command that a text begins with, up to where the sentence goes on."""
    text = re.split(r"[;)\]},.:?\"]+(?=\s|$)|\s[|#(>&]|\s--\s", text.strip())[0]
    try:
        words = shlex.split(text)[1:]
    except ValueError:  # an apostrophe of the sentence
        words = text.split()[1:]
    command, start = find_command(words)
    takes = {name for o in command.params if isinstance(o, click.Option) and not o.is_flag for name in o.opts}
    kept = words[:start]
    for before, word in zip(words[start - 1 :], words[start:], strict=False):
        if before not in takes and not WORD.fullmatch(word) and not _is_model(word):
            break
        kept.append(word)
    return kept


def _is_model(word: str) -> bool:
    from enginebench.models.zoo import BUILTIN

    return word in BUILTIN


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
    for path in (*SESSIONS, *STORED):
        printed = [line[1:] if path in SESSIONS else line for line in path.read_text("utf-8").splitlines()]
        marks = [line[:1] in "|!" or path in STORED for line in path.read_text("utf-8").splitlines()]
        for line, is_printed in zip(printed, marks, strict=True):
            if is_printed and "Usage: " not in line and "Try 'enginebench" not in line:
                yield from ((str(path.relative_to(ROOT)), found[0]) for found in NAMED.finditer(line))
    for path in PAGES:
        text = _unfold(path.read_text("utf-8"))
        yield from ((str(path.relative_to(ROOT)), found[0]) for found in NAMED.finditer(text))


@pytest.fixture
def no_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing `--allow-code NAME` would allow it for the tests that follow."""
    monkeypatch.setattr(opts, "_allow", lambda names: None)


def parse(words: list[str]) -> None:
    command, start = find_command(words)
    if len(words) == start:  # only the verb is named
        return
    command.make_context(" ".join(words[:start]), words[start:])


def test_every_printed_command_is_one_that_the_program_takes() -> None:
    found, faults = 0, []
    for where, text in list_commands():
        words = cut_command(text)
        found += 1
        try:
            parse(words)
        except (click.ClickException, opts.UsageError, click.exceptions.Exit) as error:
            if not isinstance(error, click.exceptions.Exit):
                faults.append(f"{where}: enginebench {shlex.join(words)}: {error}")
    assert not faults, "\n".join(dict.fromkeys(faults))
    assert found > 400  # the harvest sees what is there


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


OPTION = re.compile(r"(?<![\w/.=-])--[a-zA-Z][a-zA-Z0-9-]+")
# A command of this program whose name is left out: `export --dynamic-batch`.
SHORT = re.compile(rf"`(?:{'|'.join(VERBS)})(?![\w-])[^`]*`")
# Options of other programs that a message names, which have no capital letter as those of trtexec do.
OTHERS = {"--workspace", "--fp16", "--onnx", "--verbose", "--shapes", "--iterations", "--duration", "--separate"}


def list_own(words: list[str]) -> set[str]:
    """The options of the command that the words call."""
    command, _ = find_command(words)
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    options = {name for one in commands for o in one.params for name in (*o.opts, *o.secondary_opts)}
    return options | {"--help"}


def list_foreign(text: str, own: set[str]) -> list[str]:
    """The options that a text names, outside of a whole command, and that are not among `own`."""
    named = OPTION.findall(SHORT.sub("", NAMED.sub("", text)))
    return [name for name in named if name not in own | OTHERS and name.lower() == name]


def list_printed() -> Iterator[tuple[str, list[str], str]]:
    """(session, words of a command of this program, a line that it printed) of every session."""
    for path in SESSIONS:
        words: list[str] = []
        for line in path.read_text("utf-8").splitlines():
            if line[:2] in ("$ ", "~ "):
                called = re.search(r"enginebench +([^|;]*)", line)
                words = called[1].split() if called else []
                words = words if words and words[0] in VERBS else []
            elif line[:1] in "|!" and words and "--help" not in words and "trtexec" not in line:
                yield path.stem, words, line[1:]


def test_an_option_that_a_verb_prints_is_its_own() -> None:
    """Also by the sessions: what they print is what a user reads."""
    faults, seen = [], 0
    for session, words, line in list_printed():
        # What another verb measured is shown with the options of that one.
        own = list_own(words) | (list_own(["run"]) if words[0] in READERS else set())
        seen += len(OPTION.findall(line))
        faults += [f"{session}: {' '.join(words[:2])}: {name}: {line}" for name in list_foreign(line, own)]
    misspelt = {"--nosuch"}  # on purpose
    assert not [fault for fault in faults if not any(name in fault for name in misspelt)], "\n".join(faults)
    assert seen > 300


# What only these verbs can print; all other warnings come with any verb that measures.
ONLY = {
    "beats_bound": ("roofline",),
    "external_preprocess": ("calibrate",),
    "generator_late": ("load",),
    "low_effective_precision.plan": ("drift", "report"),
    "overload": ("load",),
    "partly_compared": ("export",),
    "random_calibration.tensorrt": ("build", "quantize"),
    "shared_cores": ("load",),
    "too_few_samples.requests": ("load",),
    "unproved_precision.plan": ("drift", "report"),
    "unsteady": ("load",),
    "chosen_shapes": ("run", "bench", "export", "tune", "load"),
    "environment.suboptimal_plan": ("build", "run", "bench"),
    "environment": ("bench",),
    "no_device_telemetry": (),  # --pid is docker's
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
    features |= {"tune": ["tune"], "trtexec": ["parse", "build", "bench", "run"], "fpga": ["fpga", "budget", "build"]}
    if inner[0] == "verbs" and path.stem in VERBS:
        return [path.stem]
    return features.get(inner[1], []) if inner[0] == "features" and len(inner) > 2 else []


# Sources that write the command lines of other programs, and hints of verbs that ask a feature.
OF_OTHERS = ("env.py", "synth.py", "servers.py", "command.py", "ray_fleet.py", "log.py")
# Names of options that such a source reads, or hands to a verb that has them: they are no advice.
HANDED_ON = {"--by-time", "--cache", "--trtexec", "--prices", "--between", "--metric", "--find-capacity", "--engines"}


def test_the_sources_of_a_verb_advise_options_that_it_has() -> None:
    faults = []
    for path in SOURCES:
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
