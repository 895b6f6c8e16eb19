"""Words and phrases of one text: how much each adds to what the model says about it."""

from unweave.attribution.attribute import Attribution, attribute
from unweave.attribution.peers import MethodWords, compare_attributions

__all__ = ["Attribution", "MethodWords", "attribute", "compare_attributions"]
