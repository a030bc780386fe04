"""A file of options: `--config FILE` gives what was not typed, refuses what has to be, and repeats a stored run."""

import json
import os
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import pytest

import enginebench
from enginebench.config import (
    LIMIT_BYTES,
    MOST_DOTS,
    format_options_file,
    make_table,
    name_key,
    override,
    read_options,
    takes_path,
    tomllib,
)
from enginebench.core.commands import IN_FILE
from enginebench.core.errors import UsageError
from enginebench.door import VERBS, GroupedCommand, program
from enginebench.options import Opt, Shared, list_options
from printed_facts import find_fault
from processes import Cli

COMMANDS = {name: program.get_command(click.Context(program), name) for name in VERBS}
CONFIGURED = {
    name: command
    for name, command in COMMANDS.items()
    if isinstance(command, GroupedCommand) and any("--config" in one.opts for one in command.params)
}
FAST = ("--warmup", "2", "--iters", "30", "--processes", "1")


def write(folder: Path, text: str) -> Path:
    path = folder / "options.toml"
    path.write_text(text)
    return path


def read(folder: Path, text: str, verb: str = "run") -> dict[str, object]:
    return read_options(write(folder, text), verb, CONFIGURED[verb].in_file, VERBS)


def test_every_verb_with_the_common_options_takes_a_file_and_no_other() -> None:
    common = list_options(Shared).keys() - {"progress"}
    having = {n for n, c in COMMANDS.items() if isinstance(c, GroupedCommand) and c.declared.keys() >= common}
    assert {"run", "bench", "tune", "load", "export"} <= having
    assert CONFIGURED.keys() == having


def test_run_shows_few_options_and_names_those_of_the_file() -> None:
    command = CONFIGURED["run"]
    context = click.Context(command, info_name="run", help_option_names=["-h", "--help"])
    assert len([one for one in command.get_params(context) if isinstance(one, click.Option)]) <= 43
    end = " ".join(command.get_help(context).partition("Few need these")[2].split())
    assert all(name in end for name in IN_FILE["run"])
    first = command.get_help(context).partition("Most used:\n")[2].partition("\n\n")[0]
    assert first.count("\n  --") == 9, "ten of them, and no more"


EXAMPLES = {"input_shape": {"x": [1, 64]}, "dynamic_axes": {"x": [2]}, "limit": {"cosine": 0.9}, "batch": [1, 8]}


def make_value(option: Opt) -> Any:
    """A value other than the default, as TOML has it."""
    if get_origin(option.kind) is Literal:
        return next(value for value in get_args(option.kind) if value != option.default)
    number = max(option.ge or 0, 1) if option.gt is None else option.gt + 0.5
    plain = {bool: not option.default, int: int(number), float: float(number), str: "text"}
    known = EXAMPLES.get(option.name) if option.kind is not int else None
    return plain.get(option.kind, known or "text")


@pytest.mark.parametrize("verb", CONFIGURED)
def test_every_option_may_stand_in_the_file_as_python_callers_give_it(verb: str, tmp_path: Path) -> None:
    """What repeats a command is such a file: both name the options alike."""
    options = [option for option in CONFIGURED[verb].in_file if not option.typed]
    values = [(option, make_value(option)) for option in options]
    kept = [(option, value) for option, value in values if not option.name.startswith(("out", "deliver", "resume"))]
    text = format_options_file(verb, values)
    table = tomllib.loads(text)[verb]
    assert table.keys() <= {name_key(option) for option in options}
    got = read(tmp_path, text, verb)
    written = {o.name for o, _ in values if (o.path or "").startswith("new")} | {"resume"}
    assert got.keys() == {option.name for option, _ in values} - written
    for option, value in kept:
        if option.name in got:
            alike = json.loads(json.dumps(got[option.name]))
            assert alike == value, option.name


@pytest.mark.parametrize("verb", CONFIGURED)
def test_what_names_code_has_to_be_typed(verb: str, tmp_path: Path) -> None:
    typed = [option for option in CONFIGURED[verb].in_file if option.typed]
    assert {"ort_extension"} <= {option.name for option in typed}
    for option in typed:
        value = "true" if option.kind is bool else '"a=b"'
        with pytest.raises(UsageError) as caught:
            read(tmp_path, f"[{verb}]\n{name_key(option)} = {value}\n", verb)
        text = str(caught.value)
        assert f"options.toml, $.{verb}.{name_key(option)}: it names code" in text
        assert text.endswith(f"type {option.typed.format('a=b')}")


REFUSED = [
    ("[run]\nmodle = 'x'", "$.run...`modle`...Did you mean model?...docs/cli.md"),
    ("[run]\np99-limit-ms = 3", "`p99-limit-ms`...Did you mean p99_limit_ms?"),
    ("[run]\nprocesses = '6'", "$.run...processes='6'...a whole number, at least 1"),
    ("[run]\nprocesses = 0", "$.run...processes=0...at least 1"),
    ("[run]\nbatch = [1, 'a']", "$.run.batch[1]...`str`...`int`"),
    ("[run]\nengines = 3", "$.run.engines...`int`...`str | array`"),
    ("[run]\ncache = 'warm'", "$.run...cache='warm'...hot, cold"),
    ("[run]\nquick = 1", "$.run...quick=1...True or False"),
    ("[run]\ntime_limit = nan", "$.run...time_limit=nan...a finite number"),
    ("[run]\nseed = 1" + "0" * 400, "$.run...expected a whole number"),
    ("[run]\nengines = 'trtexec:path=/x'", "$.run.engines...its path= names code...type --engines trtexec:path=/x"),
    ("[run]\nengines = ['ort', 'tensorrt:plugins=/x']", "$.run.engines...plugins=...type --engines ort,tensorrt"),
    ("[run]\nbaseline = 'tensorrt: host_code = 1'", "$.run.baseline...host_code="),
    ("[run]\nconfig = 'x'", "`config`"),
    ("[rnu]\nx = 1\n[run]\nquick = true", "$.rnu...'rnu'...[run]"),
    ("engines = 'ort'\n[run]\nquick = true", "$.engines...'ort'...Options of run stand below [run]"),
    ("run = 3", "$.run...found 3...expected a table"),
    ("[tune]\nquick = true", "no table [run]...[tune]"),
    ("", "no table [run]...nothing"),
    ("[run", "options.toml...expected TOML"),
    ("[run]\nx = " + "[" * 100_000, "expected TOML"),
    ("[run]\n" + "{x=".join(["x="] * 50_000), "expected TOML"),
    ("[run]\n" + ".".join(["x"] * 200_000) + " = 1", f"line 2...199999 dots...at most {MOST_DOTS}"),
    ("#" * (LIMIT_BYTES + 1), "larger than 1 MiB"),
    ("\ud800", "expected TOML"),  # bytes that are not UTF-8
    ("[run]\nquick = true\0", "expected TOML"),
]


@pytest.mark.parametrize(("text", "facts"), REFUSED, ids=lambda text: text[:24])
def test_a_wrong_file_is_refused_before_anything_begins(cli: Cli, tmp_path: Path, text: str, facts: str) -> None:
    (tmp_path / "options.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    done = cli("run", "digits-mlp", "--config", "options.toml", "--out", "r")
    assert (done.returncode, find_fault([facts], done.stderr)) == (2, None), done.stderr[:500]
    assert len(done.stderr) < 1000 and not (tmp_path / "r").exists()


def test_a_pipe_a_folder_and_no_file_are_refused(cli: Cli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("pipe", "a pipe or a device"), (".", "directory"), ("nowhere.toml", "No such file")):
        done = cli("run", "digits-mlp", "--config", name)
        assert done.returncode == 2 and words in done.stderr, done.stderr


def test_what_is_typed_goes_before_the_file(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    """And files are looked for beside the TOML file, wherever the user stands."""
    there = tmp_path / "there"
    there.mkdir()
    tiny_onnx.rename(there / "tiny.onnx")
    write(
        there,
        '[run]\nmodel = "tiny.onnx"\nengines = ["fake", "fake:seed=2"]\nprocesses = 3\nseed = 7\nwide = true\n'
        'input_shape = {input = [2, 64]}\nlimit = {cosine = 0.5}\nout = "r"\n',
    )
    typed = ("--processes", "1", "--iters", "20", "--warmup", "1", "--json")
    cli("run", "--config", "there/options.toml", *typed, code=0)
    request = json.loads((tmp_path / "r" / "run.json").read_text())["request"]
    assert [name for name, _ in request["engines"]] == ["fake", "fake"]
    assert request["model"].endswith("there/tiny.onnx")
    assert (request["measure"]["processes"], request["measure"]["seed"], request["measure"]["iters"]) == (1, 7, 20)
    assert request["input_shapes"] == {"input": [2, 64]} and request["limits"] == {"cosine": 0.5}


def test_one_spelling_of_a_limit_that_is_typed_goes_before_the_other_in_the_file() -> None:
    of_file = {"max_metric_drop": 0.5, "seed": 7}
    assert override(of_file, {"max_top1_drop": 3.0}) == {"seed": 7, "max_top1_drop": 3.0}
    assert override(of_file, {"seed": 1}) == {"max_metric_drop": 0.5, "seed": 1}


def test_a_stored_run_is_repeated_by_its_own_file(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    write(tmp_path, "[run]\nseed = 5\nwarnings = true\nlimit = {cosine = 0.5}\n")
    asked = ("--engines", "fake,fake:seed=2", "--batch", "1", "--no-wait", *FAST)
    cli("run", tiny_onnx, *asked, "--config", "options.toml", "--out", "first", code=0)
    text = (tmp_path / "first" / "enginebench.toml").read_text()
    assert "out" not in tomllib.loads(text)["run"] and text.startswith("# enginebench run --config enginebench.toml\n")
    cli("run", "--config", "first/enginebench.toml", "--out", "second", code=0)
    first, second = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("first", "second"))
    assert first["request"] == second["request"] and first["rows"] == second["rows"]
    assert (tmp_path / "second" / "enginebench.toml").read_text() == text
    cli("run", "--config", "first/enginebench.toml", "--out", "first", "--resume", code=0)
    assert (tmp_path / "first" / "enginebench.toml").read_text() == text


def test_a_program_of_python_leaves_no_file_of_a_command(tiny_onnx: Path, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "enginebench.toml").write_text("[run]\n")
    enginebench.run(tiny_onnx, engines="fake", quick=True, out=tmp_path / "r")
    assert (tmp_path / "r" / "run.json").exists() and not (tmp_path / "r" / "enginebench.toml").exists()


def test_a_stored_file_names_no_code_and_says_what_to_type() -> None:
    declared = {option.name: option for option in CONFIGURED["run"].in_file}
    values: dict[str, object] = {
        "model": "mine.models:make",
        "arguments": ("--verbose", "--x=a b"),
        "engines": "trtexec:path=/opt/trtexec,ort",
        "metric": ("top1", "mine:score\n[run]\nquick = true"),
        "inputs": "mine:inputs",
        "env": ("old=/envs/old",),
        "ort_extension": (str(Path.home() / "a b" / "ops.so"),),
        "allow_code": ("mine:make",),
        "allow_native_code": True,
        "device": "cpu",
    }
    text = format_options_file("run", [(declared[name], value) for name, value in values.items()])
    assert tomllib.loads(text) == {"run": {"device": "cpu"}}
    comment = text.splitlines()[1]
    assert comment.startswith("# ") and "mine.models:make" in comment and "--env old=/envs/old" in comment
    assert "--allow-native-code" in comment and "--allow-code mine:make" in comment and "\nquick" not in text
    assert "--ort-extension ~/'a b/ops.so'" in comment  # typed as it stands, and without the user's name


@pytest.mark.parametrize(
    ("against", "stored"),
    [
        ("pytorch@mine:make", False),
        ("ort:opt=none@mine:make", False),
        ("ort:opt=none@b.onnx", True),
        ("ort:opt=none", True),
        ("pytorch@scripted.pt", False),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_side_that_names_code_is_not_stored(
    against: str, stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    module = torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    module.save("scripted.pt")
    declared = {option.name: option for option in CONFIGURED["bench"].in_file}
    text = format_options_file("bench", [(declared["against"], against)])
    assert tomllib.loads(text) == {"bench": {"against": against} if stored else {}}
    assert stored or f"--against {against}" in text


def test_what_is_typed_for_the_engines_tool_comes_last() -> None:
    declared = {option.name: option for option in CONFIGURED["run"].in_file}
    values = {"model": "mine:make", "arguments": ("--sparsity=enable",), "engines": "trtexec:path=/x", "env": ("a=/b",)}
    (comment,) = [line for line in format_lines(declared, values) if "type what" in line]
    assert comment.endswith(" -- --sparsity=enable")


def format_lines(declared: dict[str, Any], values: dict[str, Any]) -> list[str]:
    return format_options_file("run", [(declared[name], value) for name, value in values.items()]).splitlines()


def test_what_was_allowed_is_said_in_the_stored_file(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    fast = ("--warmup", "0", "--iters", "1", "--processes", "1")
    done = cli(
        "bench", tiny_onnx, "--engine", "fake", *fast, "--allow-native-code", "--allow-code", "m:make", "--out", "b"
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "b" / "enginebench.toml").read_text("utf-8")
    assert "--allow-native-code" in text and "--allow-code m:make" in text and "allow" not in str(tomllib.loads(text))


def test_an_empty_text_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[run]\nmodel = "digits-mlp"\nout = ""\n')
    done = cli("run", "--config", "a.toml")
    assert done.returncode == 2 and "$.run.out: the text is empty; leave it out" in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name in ("run.json", "rows")] == []


@pytest.mark.parametrize("value", ['"', "\\", "a\nb\tc", "\x7f\x00\x1f", "ü 😀", "'''", "[x]\n#", "~nobody/x"])
def test_a_text_is_the_same_after_it_was_written_and_read(value: str, tmp_path: Path) -> None:
    (declared,) = (option for option in CONFIGURED["run"].in_file if option.name == "task")
    text = format_options_file("run", [(Opt("", name="x", names="x", kind=str), value)])
    assert tomllib.loads(text)["run"]["x"] == value
    assert not takes_path(declared)


def test_a_home_folder_is_neither_stored_nor_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "net.onnx").touch()
    (model,) = (option for option in CONFIGURED["run"].in_file if option.name == "model")
    text = format_options_file("run", [(model, str(tmp_path / "net.onnx"))])
    assert str(tmp_path) not in text and '"~/net.onnx"' in text
    assert read(tmp_path, text) == {"model": str(tmp_path / "net.onnx")}


def test_a_side_names_its_target_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").touch()
    got = read(tmp_path, "[drift]\nref = 'pytorch@net.onnx'\ncand = 'ort@elsewhere.onnx'\n", "drift")
    assert got == {"reference": f"pytorch@{tmp_path / 'net.onnx'}", "candidate": "ort@elsewhere.onnx"}


def test_a_table_of_two_spellings_names_both() -> None:
    table = make_table("x", {"new": Opt("", kind=int, name="new")}, {"old": "new"})
    assert table(old=3).list_options() == {"new": 3}
    with pytest.raises(ValueError, match="one of new and old"):
        table(old=3, new=4)
