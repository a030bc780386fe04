"""Sequences: decoded as the paper has it, and errors counted as jiwer does and by hand."""

import sys

import numpy as np
import pytest

from enginebench.core.errors import FeedError, MissingDependency
from enginebench.stats.metrics.metric import Targets
from enginebench.stats.metrics.scores import score_counts
from enginebench.stats.metrics.sequences import count_errors, decode_tokens, read_sequences
from enginebench.stats.metrics.tasks import BUILTIN

WORDS = ("-", "a", "b", "c", " ")


def write(*texts: str, width: int = len(WORDS)) -> np.ndarray:
    """Scores over time whose best path is the texts, a character each step."""
    steps = max(map(len, texts))
    places = [[WORDS.index(c) for c in text.ljust(steps, "-")] for text in texts]
    return np.eye(width, dtype=np.float32)[np.array(places)]


def measure(name, scores, targets):
    metric = BUILTIN[name](targets)
    return score_counts(metric, metric.count({"out": scores}, targets)).value.value


def test_repeats_are_merged_and_blanks_left_out_whichever_token_separates():
    scores = write("aa-ab-", "-bb--c")
    assert decode_tokens(scores, 0) == [(1, 1, 2), (2, 3)]
    assert decode_tokens(scores, None) == [(1, 1, 0, 1, 2, 0), (0, 2, 2, 0, 0, 3)]
    assert read_sequences(scores, Targets(values=[], vocabulary=WORDS)) == ["aab", "bc"]
    assert read_sequences(scores, Targets(values=[], vocabulary=WORDS[1:])) == ["aab", "bc"]
    scores = write("a a b")
    assert read_sequences(scores, Targets(values=[], vocabulary=WORDS, blank=4)) == ["aab"]


def test_tokens_that_the_graph_decoded_itself_are_taken_as_they_are():
    assert read_sequences(np.array([[3, 3, -1], [2, -1, -1]]), Targets(values=[])) == [(3, 3), (2,)]
    assert read_sequences(np.array([["ab"], ["c"]]), Targets(values=[])) == ["ab", "c"]


def test_errors_are_those_of_jiwer():
    jiwer = pytest.importorskip("jiwer")
    right = ["a b c", "cab", "b"]
    scores = write("a-b- -c", "ca", "c ab")
    targets = Targets(values=right, vocabulary=WORDS)
    read = read_sequences(scores, targets)
    assert read == ["ab c", "ca", "c ab"]
    assert measure("cer", scores, targets) == pytest.approx(jiwer.cer(right, read))
    assert measure("wer", scores, targets) == pytest.approx(jiwer.wer(right, read))


def test_tokens_without_text_count_like_characters():
    pytest.importorskip("jiwer")
    targets = Targets(values=np.array([[1, 2, 3], [2, -1, -1]]))
    assert measure("cer", write("abc", "c"), targets) == measure("wer", write("abc", "c"), targets) == 0.25
    # Where nothing is to be read, each character that was read is an error.
    targets = Targets(values=["", "abc"], vocabulary=WORDS)
    assert measure("cer", write("ab", "abc"), targets) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("values", "vocabulary", "said"),
    [
        (["abc"], None, "put the vocabulary into the file of --targets"),
        ([[1, 2]], WORDS, "give both in the same form"),
        (["abc", "a"], WORDS, "1 sequences were read, 2 are right"),
        (["abc"], ("a",), "not in the vocabulary of 1; the model has 5 tokens"),
    ],
)
def test_what_does_not_fit_is_explained(values, vocabulary, said):
    with pytest.raises(FeedError, match=said):
        count_errors("characters")({"out": write("abc")}, Targets(values=values, vocabulary=vocabulary))


def test_without_jiwer_the_command_that_adds_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(MissingDependency, match=r'pip install "enginebench\[metrics\]"'):
        count_errors("words")({"out": write("a")}, Targets(values=["a"], vocabulary=WORDS))
