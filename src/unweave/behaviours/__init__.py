"""Behaviours to explain, one file each: prompts, named positions, a metric, the known circuit."""
