"""Jobs: each names its answer and its work, and finds its way through the pipe by that alone."""

import inspect
from typing import Any, get_type_hints

import msgspec
import pytest

from enginebench.core.features import find_each, list_names
from enginebench.core.records import Availability
from enginebench.runs.child import other_jobs
from enginebench.runs.child.jobs import (
    Answered,
    Job,
    KeepCall,
    NoteCall,
    ProbeAnswer,
    ProbeJob,
    SourceAnswer,
    find_answer,
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
    answer = find_answer(kind)
    assert get_type_hints(kind.perform)["return"] is answer
    assert inspect.isclass(answer)


def test_no_two_jobs_have_one_tag() -> None:
    tags = [kind.__struct_config__.tag for kind in JOBS]
    assert len(tags) == len(set(tags)) == 13 + len(list_names("jobs")) and None not in tags


def test_a_job_of_somebody_else_travels_like_ours() -> None:
    class Echo(msgspec.Struct, frozen=True):
        text: str

    class EchoJob(Job[Echo], frozen=True, kw_only=True, tag="echo"):
        text: str

        def perform(self, note: NoteCall, keep: KeepCall[Echo]) -> Echo:
            return Echo(self.text * 2)

    job = read_job(msgspec.json.encode(EchoJob(text="ab")))
    assert isinstance(job, EchoJob)
    line = msgspec.json.encode(Answered(answer=job.perform(print, print)))
    assert read_message(line, find_answer(type(job))) == Answered(answer=Echo("abab"))


def test_an_answer_to_another_job_is_none() -> None:
    answer = ProbeAnswer(availability=Availability(engine="fake", available=True))
    line = msgspec.json.encode(Answered(answer=answer))
    assert read_message(line, find_answer(ProbeJob)) == Answered(answer=answer)
    with pytest.raises(msgspec.DecodeError):
        read_message(line, SourceAnswer)
