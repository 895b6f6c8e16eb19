"""Contextual decomposition: relevant parts, pushed forward through the network by rules."""
