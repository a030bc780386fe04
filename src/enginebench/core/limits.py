"""What may differ before a verdict says so: the limits that hold where the user names none."""

# Relative difference of two medians that matters. Rows of one machine repeat within it where nothing disturbs them.
MARGIN = 0.02
# How much slower a version is bad, where versions are searched for the first bad one.
REGRESSION_MARGIN = 0.05
# What a row may lose of its metric against its reference: of a share 0.01, one point; of anything else, a hundredth of
# the reference's value.
MAX_METRIC_DROP = 0.01

# Trials at a look -> level of the interval there. After the three looks 1.14, 2.84 and 5 % of error are spent, as by
# 2 (1 - Phi(1.96 / sqrt(n / 10))) of O'Brien and Fleming. The levels were found for Student's t, by simulation: those
# of normal theory would spend 5.8 %. `benchmarks/sequential.py` counts again.
LEVELS = {6: 0.9886, 8: 0.9778, 10: 0.9648}
MOST = max(LEVELS)
