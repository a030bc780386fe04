"""Engines as they are measured and shipped in bundles: they load and run models, and import `core` alone, relatively."""
