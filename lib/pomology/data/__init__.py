"""Datasets of the articles, or synthetic data of the same shape.

Each function takes `source`, `folder` (a local copy) and `size` (to use the first samples only).
source: "auto" (real data if available), "real" (an error if not available) or "synthetic" (without
network). The result has `kind` ("real", or "stand-in" for synthetic data) and `origin` (one line).
"""
