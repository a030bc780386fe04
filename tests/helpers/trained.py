"""Trained models that lie in packages of the extras `models` and `models-test`, and labelled data made for them."""

import ctypes
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Samples a second, and those that the detector of speech takes at a time, after those that it has seen already.
RATE, CHUNK, CONTEXT = 16000, 512, 64


def find_file(package: str, *places: str) -> Path:
    """A file of an installed package, which is not imported; skips the test where it is missing."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        reason = f"{package} is not installed; tools/install.py --dev brings it, with all the other models"
        pytest.fail(reason) if "CI" in os.environ else pytest.skip(reason)
    return Path(next(iter(found.submodule_search_locations)), *places)


def measure_f1(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    """Harmonic mean of precision and recall over truth values."""
    return float(2 * (found & wanted).sum() / (found.sum() + wanted.sum()))


def speak(text: str) -> np.ndarray[Any, Any]:
    """Speech at 16 kHz, -1 to 1, by espeak-ng, from the library that a package brings along."""
    folder = find_file("espeakng_loader")
    library = ctypes.CDLL(str(folder / "libespeak-ng.so"))
    rate = library.espeak_Initialize(1, 0, str(folder / "espeak-ng-data").encode(), 0)  # 1: samples, no sound card
    pieces: list[np.ndarray[Any, Any]] = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)

    def take(samples: Any, count: int, _: object) -> int:
        if samples and count > 0:
            pieces.append(np.ctypeslib.as_array(samples, (count,)).astype(np.float32) / 32768)
        return 0

    taken = kind(take)
    library.espeak_SetSynthCallback(taken)
    library.espeak_SetVoiceByName(b"en-us")
    data = text.encode() + b"\0"
    library.espeak_Synth(data, len(data), 0, 0, 0, 1, None, None)
    library.espeak_Synchronize()
    library.espeak_Terminate()
    sound = np.concatenate(pieces)
    places = np.arange(0, len(sound), rate / RATE)
    return np.interp(places, np.arange(len(sound)), sound).astype(np.float32)


TALK = ("The engine is warm now.", "Please measure it again.", "Seven, eight, nine.", "Good night.")


def record_talk(
    texts: Sequence[str] = TALK, rng: np.random.Generator | None = None
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(chunks [n, 576] with their context, whether most of each is speech): sentences between noise and hum."""
    rng = rng or np.random.default_rng(0)
    sound, truth = [], []
    for i, text in enumerate(texts):
        quiet = rng.normal(0, 0.003 * (1 + i), RATE).astype(np.float32)
        hum = (0.05 * np.sin(2 * np.pi * 100 * np.arange(RATE // 2) / RATE)).astype(np.float32)
        voice = speak(text)
        loud = np.abs(voice) > 0.02
        spoken = np.convolve(loud, np.ones(1600), "same") > 0  # short gaps inside of words belong to the speech
        sound += [quiet, voice, hum]
        truth += [np.zeros(len(quiet), bool), spoken, np.zeros(len(hum), bool)]
    whole, said = np.concatenate(sound), np.concatenate(truth)
    n = len(whole) // CHUNK
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), whole])
    chunks = np.stack([padded[i * CHUNK : i * CHUNK + CONTEXT + CHUNK] for i in range(n)])
    return chunks, said[: n * CHUNK].reshape(n, CHUNK).mean(axis=1) > 0.5
