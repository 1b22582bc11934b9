"""Readers of the formats in which data sets are published. Files are hostile: sizes are bounded,
nothing in them is run.

A reader takes a `Folder` and gives arrays in canonical form: images [S, channels, height, width]
and labels [S], both uint8, under the names `x`, `y`, `x_test`, `y_test` and, where there are
unlabelled ones, `x_public`.
"""
