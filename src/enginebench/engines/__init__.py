"""Engines as measured and shipped in bundles: they load and run models; they import `core` alone, relatively."""
