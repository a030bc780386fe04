"""The user's inputs: read, cut into entries, kept, and joined again; what does not fit is refused by name."""

import os
from pathlib import Path

import numpy as np
import pytest

from enginebench.core.errors import FeedError, ModelError, ParseError, UsageError
from enginebench.core.records import TensorSpec
from enginebench.core.shapes import concrete_shape
from enginebench.models.samples import (
    cut_entries,
    group_samples,
    join_samples,
    read_input_calls,
    read_samples,
    take_sizes,
    write_samples,
)

# As Silero VAD has them: entries on axis 0, on axis 1, and a rate that all share.
SOUND = TensorSpec(name="input", dtype="float32", shape=("batch", "input_axis1"), sizes=(0, 512))
STATE = TensorSpec(name="state", dtype="float32", shape=(2, "state_axis1", 128), sizes=(0, 0, 0))
RATE = TensorSpec(name="sr", dtype="int64", shape=())
VAD = (SOUND, STATE, RATE)


def make_sounds(n: int, length: int = 512) -> dict[str, np.ndarray]:
    return {
        "input": np.arange(n * length, dtype=np.float32).reshape(n, length),
        "state": np.arange(2 * n * 128, dtype=np.float32).reshape(2, n, 128),
        "sr": np.array(16000),
    }


def test_entries_of_one_shape_are_fed_together_and_a_last_call_is_filled_up(tmp_path: Path) -> None:
    calls = [make_sounds(2), make_sounds(1, 256), make_sounds(1)]
    assert write_samples(calls, VAD, tmp_path / "samples") == 4
    entries = read_samples(str(tmp_path / "samples"))
    assert group_samples(entries, 2, VAD) == [[0, 1], [3], [2]]
    assert (filled := join_samples([entries[3]], VAD, 2))["input"].shape == (2, 512)
    assert (filled["input"][0] == filled["input"][1]).all()
    assert len(read_samples(str(tmp_path / "samples"), 2)) == 2


def test_open_axes_take_the_lengths_of_the_users_own() -> None:
    (sound, state, rate) = take_sizes(VAD, make_sounds(1, 256))
    assert sound.sizes == (0, 256) and state.sizes == (0, 0, 0) and rate.sizes == ()
    assert concrete_shape(sound, 4) == (4, 256) and concrete_shape(state, 4) == (2, 4, 128)


def test_what_does_not_fit_is_reported_whole() -> None:
    given = make_sounds(1) | {"input": np.zeros((1, 512)), "rate": np.array(1)}
    del given["sr"]
    with pytest.raises(FeedError) as seen:
        cut_entries(given, VAD)
    for words in ("unknown input 'rate'", "missing input 'sr'", "'input' has dtype float64, not float32"):
        assert words in str(seen.value)
    with pytest.raises(FeedError, match=r"different numbers of entries \(input: 2, state: 3\)"):
        cut_entries(make_sounds(2) | {"state": np.zeros((2, 3, 128), np.float32)}, VAD)


def test_files_folders_and_functions_give_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for i in (1, 0):
        np.savez(folder / f"{i}.npz", x=np.full((1, 2), i))
    assert [int(call["x"][0, 0]) for call in read_input_calls(str(folder))] == [0, 1]
    assert read_input_calls(str(folder / "1.npz"))[0]["x"].shape == (1, 2)
    (tmp_path / "mine_here.py").write_text(
        "import numpy as np\ndef one(): return {'x': np.ones(2)}\ndef many(): return (one() for _ in range(3))\n"
        "def wrong(): return [1]\ndef none(): return []\ndef fails(): raise KeyError('no file')\n"
    )
    monkeypatch.chdir(tmp_path)
    assert len(read_input_calls("mine_here:one")) == 1 and len(read_input_calls("mine_here:many")) == 3
    for name, words in (
        ("wrong", "returned an int"),
        ("none", "returned nothing"),
        ("fails", "KeyError"),
        ("no", "no"),
    ):
        with pytest.raises(ModelError, match=words):
            read_input_calls(f"mine_here:{name}")


def test_objects_and_damage_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", x=np.array([{}]))
    np.save(tmp_path / "objects.npy", np.array([{}]))
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 nothing")
    (tmp_path / "text.npz").write_text("0.5 1.5\n")
    (tmp_path / "text.npy").write_text("0.5 1.5\n")
    (tmp_path / "bare.npz").touch()
    for name, words in (
        ("objects.npz", "found Python objects, which are never loaded"),
        ("objects.npy", "found Python objects, which are never loaded"),
        ("damaged.npz", "not a zip file"),
        ("text.npz", r"found neither an \.npz nor an \.npy file"),
        ("text.npy", r"found neither an \.npz nor an \.npy file"),
        ("bare.npz", "found an empty file"),
        ("absent.npz", r"absent\.npz: found no such file"),
    ):
        with pytest.raises(ParseError, match=words):
            read_input_calls(str(tmp_path / name))
    with pytest.raises(UsageError, match=r"no such folder; expected F\.npz"):
        read_input_calls(str(tmp_path / "absent"))


def test_files_without_a_batch_axis_are_calls_of_their_own() -> None:
    specs = (TensorSpec(name="x", dtype="float32", shape=("length", 2), sizes=(3, 2)),)
    entries = [{"x": np.full((3, 2), i, np.float32)} for i in range(3)]
    assert group_samples(entries, 8, specs) == [[0], [1], [2]]


def test_a_pipe_is_refused_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npz")
    for named in (tmp_path / "x.npz", tmp_path):
        with pytest.raises(ParseError, match=r"x\.npz: found no regular file; expected one array for each input"):
            read_input_calls(str(named))
