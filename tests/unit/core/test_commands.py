"""Commands that outputs print: quoted for a shell, of options that the verb has."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from enginebench.core.commands import COMMAND, OPTIONS, advise_inputs, format_command, join_words, name_flag
from enginebench.door import program


def find_verb(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words after `enginebench` call, and the rest of them."""
    context = click.Context(program)
    command = program.get_command(context, words[0])
    assert command is not None, words
    if isinstance(command, click.Group) and words[1:]:  # of `parse`, the kind of file is chosen where it is printed
        return command.commands[words[1]], words[2:]
    return command, words[1:]


@pytest.mark.parametrize("verb", sorted(OPTIONS))
def test_every_verb_has_the_options_that_are_named_for_it(verb: str) -> None:
    command, rest = find_verb(verb.split())
    names = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    assert OPTIONS[verb] <= names and not rest


ODD = ["a b", "mel ä", "it's", 'two "words"', "$HOME", "$(id) `id`", "", "*"]
UNPRINTABLE = ["a\nb's \\", "\x1b[31m", "\u202ea", "\udcff"]


@pytest.mark.parametrize("text", [*ODD, *UNPRINTABLE])
def test_a_shell_reads_the_words_that_were_meant(text: str) -> None:
    printed = format_command("deliver", text, options=[("--row", text), ("--allow-native-code", None)])
    assert printed.isprintable()
    read = subprocess.run(["bash", "-c", rf"printf '%s\0' {printed}"], capture_output=True, check=True).stdout
    words = list(map(os.fsdecode, read.split(b"\0")[:-1]))
    assert words == ["enginebench", "deliver", text, "--row", text, "--allow-native-code"]


def test_a_path_that_begins_with_a_dash_is_no_option() -> None:
    assert format_command("report", "-x out", options=[("--warnings", None)]) == (
        "enginebench report './-x out' --warnings"
    )


def test_the_home_folder_stays_what_a_shell_expands() -> None:
    assert join_words(["run", "~/my models/a.onnx", "~", "a~/b"]) == "run ~/'my models/a.onnx' '~' 'a~/b'"


def test_an_option_that_the_verb_lacks_is_a_fault_of_ours() -> None:
    with pytest.raises(ValueError, match="drift has no --data"):
        format_command("drift", "a", "b", options=[("--data", "DIR")])


def test_inputs_are_advised_by_options_of_the_verb() -> None:
    assert advise_inputs("run") == "give --inputs F.npz, or --data DIR"
    assert advise_inputs("drift") == advise_inputs("bench") == "give --inputs F.npz"
    assert advise_inputs("build") == advise_inputs("simulate") == "use real inputs"  # these take none


def test_python_hears_of_an_argument_and_the_command_line_of_an_option() -> None:
    assert name_flag("--no-wait", "wait=False") == "wait=False"
    token = COMMAND.set(("enginebench", "run"))
    assert name_flag("--no-wait", "wait=False") == "--no-wait"
    COMMAND.reset(token)


def test_a_command_printed_under_uvx_starts_as_the_one_that_was_typed(tmp_path: Path, monkeypatch: Any) -> None:
    """`enginebench` alone is no command there: its environment is in the cache of uvx."""
    packages = tmp_path / "archive-v0" / "x1" / "lib" / "python3.11" / "site-packages"
    needed = {
        "enginebench": (
            "numpy",
            "onnx>=1.17; extra == 'ort'",
            "onnxruntime>=1.20 ; extra == 'ort'",
            "torch; extra == 'torch'",
        ),
        "onnxruntime": (),
        "ONNX": (),
        "numpy": (),
    }
    for name, requirements in needed.items():
        folder = packages / f"{name}-1.0.dist-info"
        folder.mkdir(parents=True)
        lines = (f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {one}" for one in requirements))
        (folder / "METADATA").write_text("\n".join(lines))
    (packages / "enginebench-1.0.dist-info" / "direct_url.json").write_text('{"url": "file:///tmp/e%20b.whl"}')
    monkeypatch.setattr(sys, "prefix", str(packages.parents[2]))
    command = format_command("deliver", "out", options=[("--row", "ort-fp32")])
    assert command == ("uvx --from 'enginebench[ort] @ file:///tmp/e%20b.whl' enginebench deliver out --row ort-fp32")
