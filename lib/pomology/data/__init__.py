"""The articles' datasets, or stand-ins of the same shape.

Each takes `source` ("auto": the article's from `folder`, cache or hub, else the stand-in; "real" insists; "stand-in"
asks neither disk nor network), `folder` (a local copy) and `size` (the first ones only, for smoke tests). The result
says in `kind` ("real" or "stand-in") and `origin` (one line, for tables) what it is and why."""
