"""The report page: what is embedded in it, and how it behaves in a browser."""

from __future__ import annotations
