"""How good a row's answers are: metrics of answers and labels, their intervals, and the paired difference."""
