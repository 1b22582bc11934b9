"""Stacked networks on CUDA."""
