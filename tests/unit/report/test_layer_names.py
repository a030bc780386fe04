"""Names of fused layers, for a reader."""

import pytest

from enginebench.report.layer_names import fold_name, fold_names


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("layer4.1.bn2 + layer4.1: add + layer4.1.relu: relu 2 + avgpool", "layer4.1: bn2 + add + relu 2; avgpool"),
        ("l2.0.bn2 + l2.0.downsample.1 + l2.0: add", "l2.0.bn2 + l2.0.downsample.1 + l2.0: add"),
        ("l2.0.bn2 + l2.down.1 + l2.0: add + l2.0.relu: relu 2", "l2.0.bn2; l2.down.1; l2.0: add + relu 2"),
        ("/layer1/layer1.0/conv1/Conv + /layer1/layer1.0/relu/Relu",) * 2,
        ("bn1 + relu + maxpool",) * 2,
        ("node_Conv_10 + node_add",) * 2,
        ("layer1.0.conv1",) * 2,
        ("",) * 2,
        ("layer1.0: add 2",) * 2,
    ],
)
def test_what_parts_share_is_said_once(name: str, folded: str) -> None:
    assert fold_name(name) == folded


# As CUPTI demangled them on an H100.
NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::Half, float, false>(int, float, "
    "c10::Half const*, c10::Half*)"
)
COPY = (
    "void at::native::elementwise_kernel<128, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda("
    "at::TensorIteratorBase&)::{{lambda()#3}}::operator()() const::{{lambda()#{}}}::operator()() "
    "const::{{lambda(c10::Half)#1}}> >(at::TensorIteratorBase&, at::native::direct_copy_kernel_cuda("
).format


def test_kernels_that_differ_are_never_shown_as_one() -> None:
    copies = [COPY(7), COPY(10), NORM]
    short = fold_names(copies)
    assert [name.partition("kernel_cuda")[2] for name in short[:2]] == ["#3#7#1>>", "#3#10#1>>"]
    assert short[2] == "vectorized_layer_norm_kernel<Half, float, false>"
    other = NORM.replace("c10::Half*", "float*")
    assert fold_names([NORM, other, NORM]) == [NORM, other, NORM]
