"""The quality of a configuration's outputs: metrics of outputs and labels, intervals, and paired differences."""
