"""How a case ended, and what doubts its number."""

from __future__ import annotations

JUDGED_STEPS = 50  # with fewer losses than these nobody can tell whether a model learns

ACCURACY_STEPS = 20  # after so many steps any model here that can learn does better than chance
