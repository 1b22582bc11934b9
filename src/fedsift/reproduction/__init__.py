"""Reproducing a paper: its tables and figures as experiments, with a verdict on every claim.

This package knows no paper; each one is a folder in `fedsift.papers`. Data flow one way:
a paper's curves (TOML) -> runs -> reports (a dictionary, its JSON and Markdown) -> pictures.
"""
