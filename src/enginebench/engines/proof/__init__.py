"""What a runtime's own record proves: precisions by fraction of time, layers, and kernels by name.

Lives here: from records of operators to shares. May not be here: taking the record, which each engine does itself.
"""
