"""Readers of the formats in which data sets are published. Files are hostile: sizes are bounded,
nothing in them is run.

A reader takes a `Folder` and gives arrays: images [S, channels, height, width] and labels [S], both
uint8. Their names are `x`, `y`, `x_test`, `y_test` and, where some have no labels, `x_public`.
"""
