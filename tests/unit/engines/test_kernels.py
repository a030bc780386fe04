"""Names of kernels, as cuDNN, cuBLAS, CUTLASS, PyTorch and Triton give them, to the precision that they compute in."""

import pytest

from enginebench.core.precisions import classify_kernel
from enginebench.engines.proof import (
    WATCHED_RUN,
    list_kernel_times,
    name_precision,
    split_watched_runs,
    summarize_kernels,
)
from events import make_event

CASES = {
    "fp32": [
        "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8_stage3_warpsize1x2x1_ffma",
        "void cutlass__5x_cudnn::Kernel<cutlass_cudnn_simt_sfprop_optimized_64x64_8_nhwc_align4>(Params)",
        "ampere_sgemm_32x32_sliced1x4_tn",
        "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false>(int, int, float const*)",
        "_5x_cudnn_ampere_scudnn_128x64_relu_medium_nn_v1",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(Params)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3>>()",
        "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, true, 1>(float, float)",
    ],
    "tf32": [
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_warpsize2x2x1",
        "cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4",
        "sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_tensor16x8x8_t1r3s3",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_64x64_16x6_nhwc_align4>(Params)",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32",
    ],
    "fp16": [
        "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1",
        "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop_optimized_f16_128x128>(Params)",
        "nvjet_hsh_64x8_64x16_4x1_v_bz_TNN",
        "turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_medium_nhwc_tn_v1",
        "void at::native::vectorized_elementwise_kernel<8, at::native::clamp_scalar<c10::Half>>()",
    ],
    "bf16": [
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x64x32",
        "nvjet_tst_64x8_64x16_4x1_v_bz_TNN",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s1688fprop_optimized_bf16_64x64_32x2>(Params)",
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>>()",
    ],
    "int8": [
        "sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_nchw_vect_c_32kcrs_vect_c_32_nchw",
        "sm80_xmma_fprop_implicit_gemm_interleaved_i8f16_i8i32_f32_nchw_vect_c_32kcrs_vect_c_32_nchw",
        "turing_fp16_i8816cudnn_int8_128x128_ldg16_relu_small_nt_v1",
        "ampere_fp32_icudnn_int8x4_128x64_relu_medium_nn_v1",
    ],
    "fp8": ["nvjet_sm90_qqtst_128x8_64x16_4x1_v_bz_TNN", "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x128"],
    "reorder": [
        "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>(Params)",
        "void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float, true, false>(Params)",
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>()",
    ],
    # The letters of a layout (q, k, v) or of a word are no type.
    "unknown": [
        "triton_poi_fused_relu_float_3",
        "__myl_HalfTf32_myl0_1",
        "fmha_S_qkv_128_causal_sm90_kernel",
        "write_output_tf",
        "cudnn_generated_fort_native_pointwise",
        "something new",
    ],
}


@pytest.mark.parametrize(("dtype", "name"), [(dtype, name) for dtype, names in CASES.items() for name in names])
def test_names(dtype: str, name: str) -> None:
    assert (classify_kernel(name), name_precision(dtype)) == (dtype, dtype)


def test_kernels_belong_to_the_run_in_whose_span_they_start() -> None:
    events = [
        make_event("ampere_sgemm_32x32", 5, 1, device="CUDA"),
        make_event(WATCHED_RUN, 10, 100),
        make_event(WATCHED_RUN, 10, 100, device="CUDA"),
        make_event("ampere_sgemm_32x32", 20, 7, device="CUDA"),
        make_event("cudaLaunchKernel", 15, 3),
        make_event(WATCHED_RUN, 200, 100),
        make_event("Memcpy DtoD (Device -> Device)", 220, 2, device="CUDA"),
    ]
    runs = [list_kernel_times(run) for run in split_watched_runs(events)]
    assert [[kernel[:2] for kernel in run] for run in runs] == [[("fp32", 7.0)], [("reorder", 2.0)]]
    assert runs[0][0].name == "ampere_sgemm_32x32"


def test_launches_of_a_kernel_are_one_layer() -> None:
    names = ("ampere_sgemm_32x32", "Memcpy DtoD", "ampere_sgemm_32x32", "triton_poi_fused_0")
    events = [make_event(name, i, 10 * i + 1, device="CUDA") for i, name in enumerate(names)]
    profile = summarize_kernels([list_kernel_times(events)])
    assert [(x.name, x.mean_ns, x.precision) for x in profile.layers] == [
        ("ampere_sgemm_32x32", 22.0, "fp32"),
        ("Memcpy DtoD", 11.0, "reorder"),
        ("triton_poi_fused_0", 31.0, None),
    ]
    assert "all launches of one kernel" in profile.notes[0]
