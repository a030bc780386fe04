"""What a runtime's own record proves: precisions by share of time, layers, and kernels by name."""
