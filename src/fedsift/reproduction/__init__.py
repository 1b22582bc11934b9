"""The paper reproduced: its tables, figures and theorem as experiments, with a verdict on every
claim.

Data flow one way: curves (TOML) -> runs -> results (a dictionary, its JSON and Markdown) ->
pictures.
"""
