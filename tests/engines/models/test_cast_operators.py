"""Every operator that ONNX's own conformance suite has a case of, cast to FP16 and BF16."""

import warnings

import onnx
import pytest

from enginebench.models.precision.cast import cast_to_bf16, cast_to_fp16


@pytest.fixture(scope="module")
def cases():
    """Name of each case with an FP32 input or output -> its graph, as far as the specification's own check takes it."""
    from onnx.backend.test.case.node import collect_testcases

    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reference values of operators at infinity
        models = {case.name: case.model for case in collect_testcases(None) if case.model is not None}
    for name, model in models.items():
        ends = (*model.graph.input, *model.graph.output)
        if any(value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for value in ends):
            try:
                onnx.checker.check_model(onnx.shape_inference.infer_shapes(model), full_check=True)
            except onnx.shape_inference.InferenceError:
                continue  # MeanVarianceNormalization, whose definition the check refuses
            found[name] = model
    return found


@pytest.mark.parametrize("cast", [cast_to_fp16, cast_to_bf16])
def test_every_operator_is_valid_after_a_cast(cases, cast):
    assert len(cases) > 1000
    failed = {}
    for name, given in cases.items():
        model = onnx.ModelProto()
        model.CopyFrom(given)
        try:
            made, _ = cast(model, (), True)
            onnx.checker.check_model(made, full_check=True)
        except onnx.shape_inference.InferenceError as error:
            failed[name] = str(error)[:200]
    assert failed == {}
