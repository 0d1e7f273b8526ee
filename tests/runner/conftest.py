"""Fixtures of the tests that run a small checkout."""

from checkouts import checkout, reproduce  # noqa: F401
