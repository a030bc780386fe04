"""The default limits: of verdicts, whose differences up to these are not significant, and of the time of a process."""

# Seconds that one process may take, unless --timeout says otherwise: a compiler takes minutes for a large model.
TIMEOUT_S = 900.0

# Relative difference of two medians that matters. On a quiet machine a configuration repeats within it.
MARGIN = 0.02
# How much slower a version is bad, where versions are searched for the first bad one.
REGRESSION_MARGIN = 0.05
# How much of its metric a configuration may lose against its reference: 0.01 of a fraction; else a hundredth of
# the reference's value.
MAX_METRIC_DROP = 0.01

# Trials at a look -> level of the interval there. After the three looks 1.14, 2.84 and 5 % of error are spent, as by
# 2 (1 - Phi(1.96 / sqrt(n / 10))) of O'Brien and Fleming. The levels were found for Student's t, by simulation: those
# of normal theory would spend 5.8 %. `benchmarks/sequential.py` counts again.
LEVELS = {6: 0.9886, 8: 0.9778, 10: 0.9648}
MOST = max(LEVELS)
