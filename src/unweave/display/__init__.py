"""How objects look in a notebook: HTML, plotly figures and data frames, from plain values.

Nothing here knows a model or a circuit: the methods `_repr_html_`, `plot` and `to_frame` of the
public classes hand over names and numbers.
"""
