"""The browser of this machine, for tests that need one; none is downloaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APPLICATIONS = (
    "Google Chrome.app/Contents/MacOS/Google Chrome",
    "Chromium.app/Contents/MacOS/Chromium",
)


def browser() -> str | None:
    places = [shutil.which(name) for name in BROWSERS]
    places += [
        str(path) for name in APPLICATIONS if (path := Path("/Applications") / name).exists()
    ]
    return next(filter(None, places), None)


needs_browser = pytest.mark.skipif(
    browser() is None, reason=f"none of {', '.join(BROWSERS)} here, nor one on a Mac"
)
