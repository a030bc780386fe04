"""What goes to a child and comes back: jobs, errors."""

import inspect
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebench.core import errors
from enginebench.core.errors import BackendUnavailable, ChildFailed, EngineBenchError, ParseError, UsageError
from enginebench.core.features import find_each, list_offered
from enginebench.core.records import Availability
from enginebench.runs.child import other_jobs
from enginebench.runs.child.across import describe_error, rebuild_error
from enginebench.runs.child.jobs import (
    ErrorResponse,
    FinalResponse,
    Job,
    KeepCall,
    NoteCall,
    ProbeJob,
    SourceResponse,
    find_response_type,
    read_job,
    read_message,
)

JOBS = [
    *(kind for kind in Job.__subclasses__() if kind.__module__ in (Job.__module__, other_jobs.__name__)),
    *find_each("jobs"),
]


@pytest.mark.parametrize("kind", JOBS, ids=lambda kind: kind.__name__)
def test_the_work_of_a_job_gives_the_answer_that_the_job_names(kind: type[Job[Any]]) -> None:
    assert kind.perform is not Job.perform
    answer = find_response_type(kind)
    assert get_type_hints(kind.perform)["return"] == answer and not isinstance(answer, TypeVar)


def test_no_two_jobs_have_one_tag() -> None:
    tags = [kind.__struct_config__.tag for kind in JOBS]
    assert len(tags) == len(set(tags)) == 18 + len(list_offered("jobs")) and None not in tags


def test_a_job_of_somebody_else_travels_like_ours() -> None:
    class Echo(msgspec.Struct, frozen=True):
        text: str

    class EchoJob(Job[Echo], frozen=True, kw_only=True, tag="echo"):
        text: str

        def perform(self, note: NoteCall, keep: KeepCall[Echo]) -> Echo:
            return Echo(self.text * 2)

    job = read_job(msgspec.json.encode(EchoJob(text="ab")))
    assert isinstance(job, EchoJob)
    line = msgspec.json.encode(FinalResponse(response=job.perform(print, print)))
    assert read_message(line, find_response_type(type(job))) == FinalResponse(response=Echo("abab"))


def test_an_answer_to_another_job_is_none() -> None:
    answer = Availability(engine="fake", available=True)
    line = msgspec.json.encode(FinalResponse(response=answer))
    assert read_message(line, find_response_type(ProbeJob)) == FinalResponse(response=answer)
    with pytest.raises(msgspec.DecodeError):
        read_message(line, SourceResponse)


CLASSES = sorted(
    (kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, EngineBenchError)),
    key=lambda kind: kind.__name__,
)
WORDS = st.text(max_size=20)


def send(error: EngineBenchError, stderr_tail: str = "") -> EngineBenchError:
    """The error as it comes out of the pipe on the parent's side."""
    line = msgspec.json.encode(describe_error(error))
    return rebuild_error(msgspec.json.decode(line, type=ErrorResponse), stderr_tail)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_error_arrives_as_it_left(kind: type[EngineBenchError], data: st.DataObject) -> None:
    names = [p.name for p in inspect.signature(kind.__init__).parameters.values() if p.name not in ("self", "kwargs")]
    error = kind(*(data.draw(WORDS, label=name) for name in names))
    arrived = send(error)
    assert type(arrived) is kind and str(arrived) == str(error)
    assert vars(arrived) == vars(error) and arrived.exit_code == error.exit_code


@given(texts=st.lists(WORDS, max_size=4))
def test_a_chain_of_causes_arrives_in_its_order(texts: list[str]) -> None:
    error: BaseException = BackendUnavailable("it does not work")
    link = error
    for text in texts:
        link.__cause__ = ValueError(text)
        link = link.__cause__
    assert isinstance(error, EngineBenchError)
    found, arrived = [], send(error).__cause__
    while arrived is not None:
        found.append(str(arrived))
        arrived = arrived.__cause__
    assert found == [f"ValueError: {text}" for text in texts]


def test_what_was_raised_while_another_was_handled_is_its_cause() -> None:
    try:
        try:
            raise KeyError("absent")
        except KeyError:
            raise UsageError("no such option")  # noqa: B904  (the tie that nobody made)
    except UsageError as error:
        assert str(send(error).__cause__) == "KeyError: 'absent'"


def test_a_plug_ins_own_error_arrives_as_the_nearest_one_that_is_known_here() -> None:
    class LicenceExpired(BackendUnavailable):
        exit_code = 3

        def __init__(self, until: Path) -> None:
            super().__init__(f"licence {until} has expired")
            self.until = until

    arrived = send(LicenceExpired(Path("/opt/licence.txt")))
    assert type(arrived) is BackendUnavailable
    assert str(arrived) == "licence /opt/licence.txt has expired"
    assert vars(arrived) == {"until": "/opt/licence.txt"}


def test_last_words_are_those_of_the_process_unless_the_error_brings_its_own() -> None:
    for own, expected in (("", "of the process"), ("of a grandchild", "of a grandchild")):
        arrived = send(ChildFailed("it hung", own), stderr_tail="of the process")
        assert isinstance(arrived, ChildFailed) and arrived.stderr_tail == expected


def test_a_file_name_that_is_no_text_costs_no_message() -> None:
    arrived = send(ParseError("/data/\udcff.jpg", "", "damage", "a picture"))
    assert str(arrived) == "/data/\\udcff.jpg: found damage; expected a picture"
    assert isinstance(arrived, ParseError) and arrived.path == "/data/\\udcff.jpg"
