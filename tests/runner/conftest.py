"""Fixtures for tests that run a small checkout."""

from checkouts import checkout, reproduce  # noqa: F401
