"""The browser of this machine, for tests that need one; none is downloaded."""

import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSERS += ("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",)
BROWSERS += ("/Applications/Chromium.app/Contents/MacOS/Chromium",)


def browser() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


needs_browser = pytest.mark.skipif(browser() is None, reason=f"none of {BROWSERS} is here")
