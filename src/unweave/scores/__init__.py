"""Methods: ways to score the nodes of a model, each one file behind one interface."""
