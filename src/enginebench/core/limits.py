"""What may differ before a verdict says so: the limits that hold where the user names none."""

from __future__ import annotations

# Relative difference of two medians that matters. Rows of one machine repeat within it where nothing disturbs them.
MARGIN = 0.02
# How much slower a version is bad, where versions are searched for the first bad one.
REGRESSION_MARGIN = 0.05
# What a row may lose of its metric against its reference: of a share 0.01, one point; of anything else, a hundredth of
# the reference's value.
MAX_METRIC_DROP = 0.01
