"""Figures of results, in one style. One that a single notebook draws is beside that notebook."""
