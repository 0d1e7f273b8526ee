"""The articles' datasets, or synthetic stand-ins of the same shape.

Each function takes `source`, `folder` (a local copy) and `size` (the first ones only).
`source` is "auto" (real data if it can be had), "real" (or an error) or "stand-in" (no network).
What comes back says in `kind` ("real" or "stand-in") and `origin` (one line) what it is.
"""
