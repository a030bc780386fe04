"""The list of translations is the same, parsed or not."""

from __future__ import annotations

import pytest
from onnxscript import values
from onnxscript._framework_apis.torch_2_5 import get_torchlib_ops

from enginebench.models.torch.translations import leave_translations_unparsed


def list_translations() -> list[tuple[str, str, str, bool]]:
    return [(op.qualified_name, op.domain, op.name, op.is_complex) for op in get_torchlib_ops()]


def test_the_list_is_the_same_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = list_translations()
    assert len(parsed) > 400
    with leave_translations_unparsed():
        monkeypatch.setattr("onnxscript._internal.ast_utils.get_src_and_ast", lambda f: pytest.fail("parsed"))
        assert list_translations() == parsed


def test_what_was_there_is_there_again() -> None:
    before = vars(values.TracedOnnxFunction)["function_ir"]
    with pytest.raises(KeyError), leave_translations_unparsed():
        raise KeyError("from the block")
    assert vars(values.TracedOnnxFunction)["function_ir"] is before


def test_another_onnxscript_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(values, "TracedOnnxFunction")
    with leave_translations_unparsed():
        pass
