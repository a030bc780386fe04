"""OpenVINO on the CPU."""
