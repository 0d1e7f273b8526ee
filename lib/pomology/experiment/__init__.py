"""Experiments and cases: the interface of notebooks."""
