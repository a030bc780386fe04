"""Why one plan has two times."""

from msgspec.structs import replace

from enginebench.core.records import Artifact, EngineSpec, MeasureSpec, Result
from enginebench.verbs.bench import explain_difference
from samples import make_result as make_row


def make_result(backend: str, plan: str = "p", scope: str = "compute", **options: str) -> Result:
    artifact = Artifact(kind="plan", model="m", path="m.plan", sha256=plan, files=(), inputs=(), outputs=())
    measure, engine = MeasureSpec(scope=scope), EngineSpec(backend=backend, options=options)  # type: ignore[arg-type]
    return replace(make_row(processes=0), id=backend, engine=engine, measure=measure, artifacts=(artifact,))


def messages(*results: Result) -> list[str]:
    return [c.message for c in explain_difference(results)]


def test_what_differs_between_two_runs_of_one_plan_is_named() -> None:
    assert messages(make_result("ort"), make_result("trtexec")) == [] == messages(make_result("trtexec"))
    (only,) = messages(make_result("trtexec", "a"), make_result("tensorrt", "b"))
    assert "different plans" in only
    (only,) = messages(make_result("trtexec", graph="1"), make_result("tensorrt"))
    assert "device's clock" in only
    assert len(messages(make_result("trtexec", scope="io"), make_result("tensorrt", scope="io"))) == 2
    found = messages(make_result("trtexec", graph="0", streams="2"), make_result("tensorrt", spin="0"))
    assert found[:2] == ["CUDA graph is 0 in trtexec and 1 in tensorrt", "spin-wait is 1 in trtexec and 0 in tensorrt"]
    assert "several streams" in found[2]
