"""Patching: runs of the model with some activations replaced by a baseline."""
