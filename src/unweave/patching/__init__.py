"""Patching: runs of the model with some activations replaced by an ablation."""
