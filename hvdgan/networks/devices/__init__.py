"""Kernels that are chosen by the kind of device that computes."""
