"""Plots of results, and the HTML report.

May import: everything but `cli` and `demo`. matplotlib is imported only here and there, on use.
"""
