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
        ("bn1 + relu + maxpool",) * 2, ("node_Conv_10 + node_add",) * 2, ("layer1.0.conv1",) * 2, ("",) * 2,
        ("layer1.0: add 2",) * 2,
    ],
)  # fmt: skip
def test_what_parts_share_is_said_once(name: str, folded: str) -> None:
    assert fold_name(name) == folded


# As CUPTI demangled them on an H100.
NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::Half, float, false>(int, float, "
    "c10::Half const*, c10::Half*)"
)
SUM = (
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::Half, at::native::MeanOps<c10::Half, float>, "
    "unsigned int, 4> >(at::native::ReduceOp<c10::Half, at::native::MeanOps<c10::Half, float>, unsigned int, 4>)"
)
COPY = (
    "void at::native::elementwise_kernel<128, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda("
    "at::TensorIteratorBase&)::{{lambda()#3}}::operator()() const::{{lambda()#{}}}::operator()() "
    "const::{{lambda(c10::Half)#1}}> >(at::TensorIteratorBase&, at::native::direct_copy_kernel_cuda("
).format
GEMV = "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, __half const, Params<float> >(Params<float>)"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (NORM, "vectorized_layer_norm_kernel<Half, float, false>"),
        (SUM, "reduce_kernel<128, 4, ReduceOp<Half, MeanOps<Half, float>, unsigned int, 4>>"),
        (COPY(10), "elementwise_kernel<128, gpu_kernel_impl_nocast<direct_copy_kernel_cuda>>"),
        (GEMV, "kernel<int, __half, Params<float>>"),
        ("cudnn::cnn::kern_precompute_indices<false>(int*, int)", "kern_precompute_indices<false>"),
        ("nvjet_sm90_hsh_64x8_64x16_1x4_h_bz_bias_TNT",) * 2, ("Memset (Device)",) * 2, ("void (", "void"),
        ("PWN(PWN(/act/Sigmoid), /act/Mul)",) * 2,
    ],
)  # fmt: skip
def test_a_kernel_is_shown_without_its_arguments(name: str, short: str) -> None:
    assert fold_names([name]) == [short]


def test_kernels_that_differ_are_never_shown_as_one() -> None:
    copies = [COPY(7), COPY(10), NORM]
    short = fold_names(copies)
    assert [name.partition("kernel_cuda")[2] for name in short[:2]] == ["#3#7#1>>", "#3#10#1>>"]
    assert short[2] == "vectorized_layer_norm_kernel<Half, float, false>"
    other = NORM.replace("c10::Half*", "float*")
    assert fold_names([NORM, other, NORM]) == [NORM, other, NORM]
