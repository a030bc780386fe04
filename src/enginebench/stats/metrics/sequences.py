"""Outputs as sequences: scores over time decoded to text or tokens, and the rates of errors in them."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal

import numpy as np

from enginebench.core.errors import FeedError, importing
from enginebench.core.protocols import Array
from enginebench.stats.metrics.labels import take_output
from enginebench.stats.metrics.metric import Count, Floats, Outputs, Targets

# Behind the last token of a sequence that is shorter than others.
PADDING = -1
# Private characters stand for tokens that have no text: from here on Unicode has room for a million.
_FIRST = 0x10000

Tokens = tuple[int, ...]


def decode_tokens(scores: Array, blank: int | None) -> list[Tokens]:
    """Return the best token of every step, for each sample; with a blank, repeats are merged and blanks left out.

    Args:
        scores: [samples, steps, tokens], or whole numbers [samples, steps], which the graph has decoded itself.
        blank: the token that separates (CTC); None: each step stands for itself.

    Source: A. Graves et al., "Connectionist temporal classification", ICML 2006, section 3.2: best path decoding.
    """
    if scores.dtype.kind in "iu":
        return [tuple(int(t) for t in row.reshape(-1) if t != PADDING) for row in scores]
    if scores.ndim != 3:
        raise FeedError(f"scores of shape {list(scores.shape)}; expected [samples, steps, tokens]")
    best = scores.argmax(axis=2)
    if blank is None:
        return [tuple(map(int, row)) for row in best]
    return [tuple(int(token) for token, _ in groupby(row) if token != blank) for row in best]


def read_sequences(output: Any, targets: Targets) -> list[str] | list[Tokens]:
    """Read an output as texts if there is a vocabulary or the output is text, else as tokens."""
    array = np.asarray(output) if not isinstance(output, list) else None
    if array is not None and array.dtype.kind in "UO":
        return [" ".join(map(str, row.reshape(-1))) for row in array]
    parts = [np.asarray(part)[None] for part in output] if array is None else [array]
    tokens = [sequence for part in parts for sequence in decode_tokens(part, targets.blank)]
    if targets.vocabulary is None:
        return tokens
    width = next((int(part.shape[2]) for part in parts if part.ndim == 3), len(targets.vocabulary))
    return [_spell(sequence, targets.vocabulary, targets.blank, width) for sequence in tokens]


def _spell(tokens: Tokens, vocabulary: tuple[str, ...], blank: int | None, width: int) -> str:
    """Spell tokens as text; a vocabulary with one entry less than the model has tokens leaves the blank out."""
    shift = 1 if blank == 0 and len(vocabulary) == width - 1 else 0
    try:
        return "".join(vocabulary[token - shift] for token in tokens)
    except IndexError as error:
        raise FeedError(
            f"token {max(tokens)} is not in the vocabulary of {len(vocabulary)}; the model has {width} tokens"
        ) from error


def count_errors(unit: Literal["words", "characters"]) -> Count:
    """Count the errors of each sample, and the expected words or characters."""

    def count(outputs: Outputs, targets: Targets) -> Floats:
        output, wanted = take_output(outputs, targets)
        sequences = read_sequences(output, targets)
        right = [
            str(entry)
            if isinstance(entry, str)
            else tuple(int(t) for t in np.asarray(entry).reshape(-1) if t != PADDING)
            for entry in wanted
        ]
        pairs: Any = zip(right, sequences, strict=False)
        if len(sequences) != len(right):
            raise FeedError(f"{len(sequences)} sequences were read, {len(right)} are right; expected as many")
        return np.array([_count_pair(r, f, unit) for r, f in pairs], np.float64)

    return count


def _count_pair(right: str | Tokens, decoded: str | Tokens, unit: str) -> tuple[int, int]:
    """Return (errors, length of the right sequence). Tokens without text count as words and as characters."""
    if isinstance(right, str) != isinstance(decoded, str):
        raise FeedError(
            "targets are text, the outputs tokens: put the vocabulary into the file of --targets"
            if isinstance(right, str)
            else "targets are tokens, the outputs text; give both in the same form"
        )
    with importing("jiwer, which counts errors in words and characters,", 'pip install "enginebench[metrics]"'):
        import jiwer
    if not isinstance(right, str) or not isinstance(decoded, str):
        right, decoded, unit = _as_text(right), _as_text(decoded), "characters"
    length = len(right.split()) if unit == "words" else len(right.strip())
    if not length:  # nothing to read: everything that was read is wrong
        return len(decoded.split()) if unit == "words" else len(decoded), 0
    made = (jiwer.process_words if unit == "words" else jiwer.process_characters)(right, decoded)
    return made.substitutions + made.deletions + made.insertions, made.hits + made.substitutions + made.deletions


def _as_text(tokens: str | Sequence[int]) -> str:
    return "".join(chr(_FIRST + int(token)) for token in tokens)
