"""Engines as they are measured and as bundles hold them: what loads and runs. They import `core` alone, relatively."""
