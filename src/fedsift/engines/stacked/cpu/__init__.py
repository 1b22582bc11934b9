"""Stacked networks on a CPU."""
