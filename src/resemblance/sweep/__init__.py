"""Sweeps: many networks on many data sets, one recording for each pair, in a folder."""
