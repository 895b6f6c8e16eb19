"""Runs: from a task and a model to a circuit in a folder, resumable at any moment."""
