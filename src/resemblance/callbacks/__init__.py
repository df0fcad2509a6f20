"""Watching a training run: a `Monitor` for loops of your own, and callbacks for two trainers."""

from .monitor import Monitor
from .trainers import lightning_callback, transformers_callback

__all__ = ["Monitor", "lightning_callback", "transformers_callback"]
