"""Graphs of classic machine learning: words to numbers and back, scores to maps, a forest."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from graphs import write_text

ML = "ai.onnx.ml"


def translate_words(path: Path) -> Path:
    """Two English words of each entry to German ones: text in, text out."""
    words = 'keys_strings = ["red", "green"], values_strings = ["rot", "gruen"], default_string = "unbekannt"'
    return write_text(path, f"(string[n, 2] x) => (string[n, 2] y) {{ y = ai.onnx.ml.LabelEncoder <{words}> (x) }}")


def classify(path: Path) -> Path:
    """Three numbers to a forest's label, and the map of its probabilities, as scikit-learn's classifiers end."""
    tree = {
        "nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0] * 3,
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.0] * 3,
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
        "class_treeids": [0] * 4, "class_nodeids": [1, 1, 2, 2], "class_ids": [0, 1, 0, 1],
        "class_weights": [0.75, 0.25, 0.125, 0.875], "classlabels_int64s": [0, 1],
    }  # fmt: skip
    nodes = [
        helper.make_node("TreeEnsembleClassifier", ["x"], ["label", "scores"], domain=ML, **tree),
        helper.make_node("ZipMap", ["scores"], ["probabilities"], domain=ML, classlabels_int64s=[0, 1]),
    ]
    pairs = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
        helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
        helper.make_value_info("probabilities", helper.make_sequence_type_proto(pairs)),
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path
