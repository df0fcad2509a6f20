"""A matplotlib figure that a notebook shows by itself.

Notebooks can show matplotlib's own figures only once pyplot was imported, which changes global
state and is not done here. So the figure brings its picture.
"""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure with a picture of itself for notebooks."""

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=80)
        return picture.getvalue()
