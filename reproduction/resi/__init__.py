"""A rebuild of the six tests of ReSi (Klabunde et al. 2024), with gradients beside features."""
