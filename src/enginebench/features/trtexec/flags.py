"""Which options each trtexec knows: 8.6 to 11.1 by table, any other by its own help text."""

import re
from difflib import get_close_matches
from typing import TypeAlias

from msgspec import Struct

from enginebench.core.errors import UsageError

Version: TypeAlias = tuple[int, int, int]

OLDEST: Version = (8, 6, 0)
NEWEST: Version = (11, 1, 0)  # the newest whose options were read; later ones are judged by their help text

# Option -> (first version that knows it, first version that does not know it any more).
# Source: the option names that the parser looks up in samples/common/sampleOptions.cpp of NVIDIA/TensorRT at tags
# v8.6.1, v9.3.0, v10.0.0, v10.12.0, v10.16, v11.0 and v11.1, each tried on builds of 8.6.1, 10.0.1, 10.16, 11.0, 11.1.
ALWAYS = (OLDEST, None)
FLAGS: dict[str, tuple[Version, Version | None]] = {
    **dict.fromkeys(
        (
            *("onnx", "saveEngine", "loadEngine", "shapes", "minShapes", "optShapes", "maxShapes", "noTF32"),
            *("inputIOFormats", "outputIOFormats", "memPoolSize", "useCudaGraph", "noDataTransfers", "useSpinWait"),
            *("infStreams", "streams", "threads", "iterations", "duration", "warmUp", "sleepTime", "idleTime"),
            *("avgRuns", "percentile", "exposeDMA", "dumpProfile", "exportProfile", "separateProfileRun"),
            *("exportTimes", "exportOutput", "dumpOutput", "dumpLayerInfo", "exportLayerInfo", "profilingVerbosity"),
            *("timingCacheFile", "noBuilderCache", "builderOptimizationLevel", "versionCompatible", "vc"),
            *("excludeLeanRuntime", "hardwareCompatibilityLevel", "useRuntime", "device", "useDLACore"),
            *("allowGPUFallback", "skipInference", "plugins", "staticPlugins", "dynamicPlugins"),
            *("setPluginsToSerialize", "sparsity", "refit", "avgTiming", "loadInputs", "verbose", "help"),
            *("persistentCacheRatio", "timeDeserialize", "timeRefit", "preview", "tempdir", "dumpRefit"),
            *("maxAuxStreams", "directIO", "safe"),
        ),
        ALWAYS,
    ),
    "workspace": (OLDEST, (10, 0, 0)),
    "nvtxMode": (OLDEST, (10, 0, 0)),
    "heuristic": (OLDEST, (10, 0, 0)),
    "buildOnly": (OLDEST, (10, 0, 0)),
    "minTiming": (OLDEST, (10, 0, 0)),
    "explicitBatch": (OLDEST, (10, 0, 0)),
    **dict.fromkeys(("maxBatch", "batch", "model", "deploy", "uff"), (OLDEST, (9, 0, 0))),
    **dict.fromkeys(
        (
            *("fp16", "int8", "fp8", "best", "calib", "minShapesCalib", "optShapesCalib", "maxShapesCalib"),
            *("precisionConstraints", "layerPrecisions", "layerOutputTypes"),
        ),
        (OLDEST, (11, 0, 0)),
    ),
    **dict.fromkeys(("bf16", "calibProfile", "weightless"), ((9, 0, 0), (11, 0, 0))),
    "int4": ((10, 2, 0), (11, 0, 0)),
    **dict.fromkeys(
        ("profile", "useProfile", "stronglyTyped", "errorOnTimingCacheMiss", "getPlanVersionOnly"), ((9, 0, 0), None)
    ),
    **dict.fromkeys(
        ("stripWeights", "allowWeightStreaming", "weightStreamingBudget", "saveDebugTensors", "noCompilationCache"),
        ((10, 0, 0), None),
    ),
    "maxTactics": ((10, 4, 0), None),
    "tilingOptimizationLevel": ((10, 8, 0), None),
    "monitorMemory": ((10, 12, 0), None),
    **dict.fromkeys(("noCudaGraph", "includeDataTransfers", "noSpinWait"), ((11, 0, 0), None)),
    **dict.fromkeys(
        (
            *("loadRefOutputs", "accuracyAlgorithm", "accuracyThreshold", "setBuildRoute", "tuneBuildRoutes"),
            *("refPair", "dryRun", "continue", "helpBuildRoute"),
        ),
        ((11, 1, 0), None),
    ),
}

# Further options that the help of 8.6.1, 10.0.1, 10.16, 11.0 or 11.1 lists; none is ever composed here.
OTHERS = frozenset(
    (
        *("adjustForDLA", "allocationStrategy", "asyncFileReader", "atol", "buildDLAStandalone", "consistency"),
        *("cpuOnly", "decomposableAttentions", "dumpKernelText", "dumpOptimizationProfile", "dumpRawBindingsToFile"),
        *("enablePluginOverride", "ignoreParsedPluginLibs", "l2LimitForTiling", "layerDeviceTypes", "leanDLLPath"),
        *("markDebug", "markUnfusedTensorsAsDebugTensors", "output", "pluginInstanceNorm", "refitFromOnnx"),
        *("remoteAutoTuningConfig", "reportCapabilityDLA", "restricted", "rtol", "runtimePlatform", "safetyPlugins"),
        *("saveAllDebugTensors", "saveAllEngines", "stripAllWeights", "tacticSources", "tempfileControls"),
        *("tuneBuildRouteFile", "tuningCacheFile", "tuningSearch", "tuningTimeOut", "uffInput", "uffNHWC"),
        *("uint8AsymmetricQuantizationDLA", "useManagedMemory"),
    )
)

# What took the place of an option that is gone, and does its work where it is not known yet.
INSTEAD = {
    **dict.fromkeys(
        ("fp16", "bf16", "int8", "fp8", "int4", "best", "precisionConstraints", "layerPrecisions", "layerOutputTypes"),
        "TensorRT 11 takes the precision from the graph: enginebench quantize --to PRECISION makes such a graph",
    ),
    **dict.fromkeys(
        ("calib", "calibProfile", "minShapesCalib", "optShapesCalib", "maxShapesCalib"),
        "TensorRT 11 has no calibrators: enginebench quantize --to int8 --calib-cache F makes Q/DQ nodes of a cache",
    ),
    "workspace": "--workspace-mb, which becomes --memPoolSize=workspace:N",
    "buildOnly": "--skipInference",
    "weightless": "--strip, which becomes --stripWeights",
    "batch": "a graph with an explicit batch axis and --shapes",
    "maxBatch": "a graph with an explicit batch axis and --max-shapes",
    "explicitBatch": "nothing: every network has an explicit batch",
    "heuristic": "--optimization-level 2",
    "noCudaGraph": "--no-cuda-graph, which leaves --useCudaGraph out",
    "includeDataTransfers": "--scope io, which leaves --noDataTransfers out",
    "noSpinWait": "trtexec:spin=0, which leaves --useSpinWait out",
    "profile": "--engine tensorrt, which builds several, or a plan for each",
    "useProfile": "--engine tensorrt, which runs any",
}

# Options that may stand on a command line more than once; any other's repetition is an unknown option to trtexec.
REPEATABLE = frozenset(
    (
        *("staticPlugins", "dynamicPlugins", "plugins", "setPluginsToSerialize"),
        *("profile", "minShapes", "optShapes", "maxShapes"),
    )
)


class Trtexec(Struct, frozen=True, kw_only=True):
    """One trtexec: its version, and where there is an executable, the options that its help lists."""

    version: Version
    build: int | None = None
    path: str | None = None
    listed: frozenset[str] = frozenset()

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def typed_by_graph(self) -> bool:
        """Whether only the graph can say the precision."""
        return not self.accepts("fp16")

    def accepts(self, flag: str) -> bool:
        """Whether this trtexec knows an option, named without hyphens.

        Being listed in the help proves that it is known. Not being listed proves nothing for deprecated names, so that
        the table answers for versions that it covers.
        """
        if flag in self.listed:
            return True
        if self.listed and not self._covered:
            return False
        first, gone = FLAGS.get(flag, (None, None))
        return first is not None and first <= self.version and (gone is None or self.version < gone)

    @property
    def _covered(self) -> bool:
        return OLDEST <= self.version < (NEWEST[0], NEWEST[1] + 1, 0)

    def check_argument(self, flag: str, argument: str) -> None:
        """Checks an option that the user wrote. Without its help, a version later than the table may have any other."""
        if flag in FLAGS:
            self.require(flag, f"argument {argument}")
        elif flag not in OTHERS | self.listed and (self.listed or self._covered):
            hint = "".join(
                f"; did you mean --{near}?" for near in get_close_matches(flag, {*FLAGS, *OTHERS, *self.listed}, 1)
            )
            raise UsageError(f"argument {argument}: trtexec {self.version_text} does not know --{flag}{hint}")

    def require(self, flag: str, wanted: str) -> None:
        """Checks that an option is known."""
        if not self.accepts(flag):
            raise UsageError(
                f"{wanted}: trtexec {self.version_text} does not know --{flag}{self._explain_absence(flag)}"
            )

    def _explain_absence(self, flag: str) -> str:
        first, gone = FLAGS.get(flag, (OLDEST, None))
        since = f"; it came with TensorRT {first[0]}.{first[1]}" if self.version < first else ""
        # What took the place of an option that has gone is no help to one who does not have it yet.
        told = flag in INSTEAD and not (since and gone)
        return since + (f". Instead: {INSTEAD[flag]}" if told else "")


def parse_version(text: str) -> Version:
    """The version of `10.16`, `11` or `8.6.1`; what is left out is 0."""
    match = re.fullmatch(r"v?(\d{1,3})(?:\.(\d{1,3}))?(?:\.(\d{1,3}))?(?:\.\d+)?", text.strip())
    version = (int(match[1]), int(match[2] or 0), int(match[3] or 0)) if match else (0, 0, 0)
    if version < OLDEST:
        raise UsageError(f"TensorRT version {text!r}: expected 8.6 or later, for example 8.6.1, 10.16 or 11.1")
    return version


def decode_version(digits: str) -> Version:
    """The version of a banner's number: `8601` is 8.6.1, `101600` is 10.16.0.

    Source: NV_TENSORRT_VERSION in NvInferVersion.h; major * 1000 + minor * 100 + patch up to 9, from 10 on
    major * 10000 + minor * 100 + patch.
    """
    number = int(digits)
    unit = 10000 if number >= 100000 else 1000
    return number // unit, number % unit // 100, number % 100
