"""Evaluation: how faithful, how small, how much better than random circuits."""
