"""Measurements of speed, memory and accuracy, one a module: `python -m benchmarks.growth -h`."""
