"""Names of fused layers, for a reader."""

from __future__ import annotations

import pytest

from enginebench.report.layer_names import fold_name


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("layer4.1.bn2 + layer4.1: add + layer4.1.relu: relu 2 + avgpool", "layer4.1: bn2 + add + relu 2; avgpool"),
        ("l2.0.bn2 + l2.0.downsample.1 + l2.0: add", "l2.0.bn2 + l2.0.downsample.1 + l2.0: add"),
        ("l2.0.bn2 + l2.down.1 + l2.0: add + l2.0.relu: relu 2", "l2.0.bn2; l2.down.1; l2.0: add + relu 2"),
        ("/layer1/layer1.0/conv1/Conv + /layer1/layer1.0/relu/Relu",) * 2,
        ("bn1 + relu + maxpool", "bn1 + relu + maxpool"),
        ("node_Conv_10 + node_add", "node_Conv_10 + node_add"),
        ("layer1.0.conv1", "layer1.0.conv1"),
        ("layer1.0: add 2", "layer1.0: add 2"),
        ("", ""),
    ],
)
def test_what_parts_share_is_said_once(name: str, folded: str) -> None:
    assert fold_name(name) == folded
