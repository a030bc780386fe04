"""Entries of the engines that run on ONNX Runtime, one for each of its providers. It is not imported here."""

from enginebench.core.entry import Builder, Entry, Int8Choice, OnDevice, Option, OtherRecipes, choice, switch
from enginebench.engines.verified import CPU_VERIFIED, FORCE, GPU_VERIFIED, PADDING

# The optimizers of ONNX Runtime that can be left out, as `disable` takes them: letters and digits, one name for what it
# runs at several levels or for one provider (`engines/ort.py: spell_optimizers`). Source: the log of onnxruntime 1.31
# ("GraphTransformer NAME modified"), and the rules of its rule_based_graph_transformer (GenerateRewriteRules).
OPTIMIZERS = (
    *("AttentionFusion", "Avx2WeightS8ToU8Transformer", "BiasDropoutFusion", "BiasGeluFusion"),
    *("BiasSkipLayerNormFusion", "BiasSoftmaxFusion", "CastChainElimination", "CastElimination"),
    *("ClipQuantRewrite", "CommonSubexpressionElimination", "ConstantFolding"),
    *("ConstantFoldingDQ", "ConstantSharing", "ConvActivationFusion", "ConvAddActivationFusion", "ConvAddFusion"),
    *("ConvBNFusion", "ConvMulFusion", "DivMulFusion", "DoubleQDQPairsRemover", "DynamicQuantizeMatMulFusion"),
    *("EliminateDropout", "EliminateIdentity", "EliminateSlice", "EmbedLayerNormFusion"),
    *("ExpandElimination", "FastGeluFusion", "FuseFp16InitializerToFp32NodeTransformer", "FuseReluClip"),
    *("GatherSliceToSplitFusion", "GatherToSliceFusion", "GeluApproximation", "GeluFusion", "GemmActivationFusion"),
    *("GemmSumFusion", "GemmTransposeFusion", "GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion"),
    *("LabelEncoderFusion", "LayerNormFusion", "MatMulActivationFusion", "MatMulAddFusion"),
    *("MatMulBatchNormalizationFusion", "MatMulIntegerToFloatFusion", "MatMulNBitsFusion", "MatMulScaleFusion"),
    *("MatmulTransposeFusion", "NchwcTransformer", "NhwcTransformer", "NoopElimination", "NotWhereFusion"),
    *("PadFusion", "PreShapeNodeElimination", "QDQFinalCleanupTransformer", "QDQPropagationTransformer"),
    *("QDQS8ToU8Transformer", "QDQSelectorActionTransformer", "QuickGeluFusion", "ReluQuantRewrite"),
    *("ReshapeFusion", "SimplifiedLayerNormFusion", "SkipLayerNormFusion"),
    *("SliceConcatToSpaceToDepthFusion", "TransposeOptimizer", "UnsqueezeElimination", "WeightBiasQuantization"),
    "WhereDummyDq",
)
DISABLE = Option(default="", meaning="optimizers that are left out: NAME, or NAME+NAME", names=OPTIMIZERS)

ORT = Entry(
    name="ort",
    axes="open",
    module="enginebench.engines.backends.onnxruntime.ort",
    takes="onnx",
    precisions=("fp32", "fp16", "int8", "int4"),
    options={
        "spinning": choice(
            "run|always|never",
            "when worker threads spin while waiting: inside a run, also between runs, or never",
            search="always|never",
            timing_only=True,
        ),
        "opt": choice("all|extended|basic|none", "how far the graph is optimised", search="extended|basic"),
        "disable": DISABLE,
        "sessions": choice(
            "each|one|async",
            "under load: a session for each stream, one for all, or one that is called asynchronously; of a mix: for "
            "each shape, or one for all",
            search="one|async",
            under_load=True,
        ),
        "pad": PADDING,
        "arena": choice(
            "own|shared|none",
            "memory of each session, of all in the process, or asked of the system each time",
            search="none",
            timing_only=True,
        ),
        "accuracy_level": choice(
            "|0|1|4",
            "weight-only graphs: 0 and 1 compute products in FP32, 4 in INT8 with activations rounded; unset, ONNX "
            "Runtime chooses (1.31: 4)",
            search="0|1",
            only_in=("int8", "int4"),
            recipes=("w8", "w4"),
        ),
        "sums": choice(
            "|exact",
            "8-bit sums on x86 without VNNI: exact takes kernels that do not saturate; unset, ONNX Runtime chooses",
        ),
        "ahead": switch("1 optimises the graph once, when it is built, for this processor; 0 in every process"),
    },
    builder=Builder(kept_with={"ahead": "1"}),
    # Seen with ONNX Runtime 1.31: a BF16 graph does not load, "Could not find an implementation for Conv(22)".
    lacks={p: f"ONNX Runtime's CPU provider has no {p.upper()} convolution or matrix product" for p in ("bf16", "fp8")},
    recipe="cpu",
    # MiniLM on an EPYC with VNNI: 62 ms, by cpu 143. ViT: 18.7 ms by cpu instead of 20.3.
    other_recipes=OtherRecipes(
        by_graph=(Int8Choice(graph="attention", recipe="dynamic"),),
        next={"dynamic": "cpu"},
        searched=("dynamic", "tensorrt", "w8"),
    ),
    chooses_threads=("cpu",),
    on={
        "cpu": OnDevice(
            any_batch=True,
            default={},
            for_shapes=({"sessions": "one"}, {"sessions": "each"}),
            known_good={"convolutions": {"arena": "none", "spinning": "always"}, "transformers": {"recipe": "dynamic"}},
        )
    },
    distributions=("onnxruntime", "onnxruntime-gpu"),
    extra="ort",
    packages=("onnxruntime", "onnx"),
    verified_on=f"onnxruntime 1.31.1, {CPU_VERIFIED}",
)
GRAPH, NHWC = {"cuda_graph": "1"}, {"prefer_nhwc": "1", "fuse_conv_bias": "1"}
ORT_CUDA = Entry(
    name="ort-cuda",
    axes="open",
    module="enginebench.engines.backends.onnxruntime.ort_cuda",
    takes="onnx",
    precisions=("fp32", "tf32", "fp16", "bf16"),
    options={
        "cuda_graph": switch("capture the first runs and launch them as one", tried=True),
        # With it cuDNN writes in the session's log that it has no plan for some layouts: part of its search.
        "prefer_nhwc": switch("run convolutions with channels last", tried=True),
        # Without it a convolution in half precision writes its output, and cuDNN reads it again to add the bias.
        "fuse_conv_bias": switch("fuse biases into convolutions; cuDNN compiles each shape while loading", tried=True),
        "conv_search": choice("exhaustive|heuristic|default", "how cuDNN's kernels are chosen", search="heuristic"),
        "opt": choice("all|extended|basic|none", "how far the graph is optimised", search="extended"),
        "disable": DISABLE,
        "on_cpu": choice("refuse|allow", "nodes that the GPU does not support"),
        "wait": choice("spin|block", "how to wait for the GPU: spinning or sleeping", search="block", timing_only=True),
    },
    device="cuda:0",
    on={
        "cuda": OnDevice(
            beside_itself={"wait": "block"},
            default={},
            known_good={"convolutions": {**GRAPH, **NHWC}, "transformers": GRAPH},
        )
    },
    lacks=dict.fromkeys(("int8", "fp8"), "ONNX Runtime's CUDA provider dequantizes such graphs and computes in FP32"),
    distributions=("onnxruntime-gpu",),
    modules=("cuda.bindings",),
    command='pip uninstall -y onnxruntime && pip install --upgrade "enginebench[cuda]"',
    verified_on=f"onnxruntime-gpu 1.31.1, {GPU_VERIFIED}",
)
_FALLBACK = choice("refuse|allow", "nodes that the provider does not support")
ORT_OPENVINO = Entry(
    name="ort-openvino",
    module="enginebench.engines.backends.onnxruntime.ort_openvino",
    takes="onnx",
    precisions=("fp32", "fp16", "bf16", "int8"),
    options={"opt": ORT.options["opt"], "fallback": _FALLBACK, "force": FORCE},
    recipe="nncf",
    chooses_threads=("cpu",),
    distributions=("onnxruntime-ep-openvino",),
    modules=("onnxruntime",),
    extra="ort-openvino",
    packages=("onnxruntime", "onnx", "onnxruntime-ep-openvino"),
    verified_on=f"onnxruntime-ep-openvino 1.8.1 with onnxruntime 1.31.1, {CPU_VERIFIED}",
)
ORT_TENSORRT_RTX = Entry(
    name="ort-tensorrt-rtx",
    module="enginebench.engines.backends.onnxruntime.ort_tensorrt_rtx",
    takes="onnx",
    precisions=("fp32", "fp16", "bf16", "int8", "fp8"),
    options={
        "graph": switch("launch as a CUDA graph", tried=True),
        "workspace_mb": Option(default="", meaning="scratch memory of the plan, in MiB"),
        "weight_budget_mb": Option(default="", meaning="GPU memory for weights that are streamed, in MiB"),
        "opt": ORT.options["opt"],
        "fallback": _FALLBACK,
    },
    device="cuda:0",
    distributions=("onnxruntime-ep-nv-tensorrt-rtx-cu13",),
    modules=("onnxruntime",),
    extra="ort-tensorrt-rtx",
    packages=("onnxruntime", "onnx", "onnxruntime-ep-nv-tensorrt-rtx-cu13"),
    verified_on="registering its library, and refusing a machine without a GPU that it supports. Not yet run on one",
)
# Nodes that TensorRT does not take run on other providers, with a note: no graph is refused for its Q/DQ nodes.
ORT_TENSORRT = Entry(
    name="ort-tensorrt",
    builder=Builder(kept_with={}, tunes=True),
    axes="fixed",
    module="enginebench.engines.backends.onnxruntime.ort_tensorrt",
    takes="onnx",
    precisions=("fp32", "tf32", "fp16", "bf16", "int8", "fp8"),
    options={
        "graph": switch("launch as a CUDA graph", tried=True),
        "weak_typing": switch("set the precision by the provider's flags (TensorRT 10 and older)"),
        "workspace_mb": Option(default="", meaning="scratch memory for one layer, in MiB"),
        "optimization_level": choice("|0|1|2|3|4|5", "how hard to search", search="5"),
        "fallback": choice("refuse|allow", "nodes that TensorRT does not support"),
    },
    device="cuda:0",
    distributions=("onnxruntime-gpu",),
    command='pip uninstall -y onnxruntime && pip install "enginebench[cuda]" tensorrt',
    verified_on="the session's settings and the fallback check, over ONNX Runtime on the CPU. Not yet run on a GPU",
)
