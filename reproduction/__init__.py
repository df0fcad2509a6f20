"""The paper's experiments, from data to figures: `python -m reproduction.run --help`."""
