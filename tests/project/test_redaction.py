"""Paths that name a person are replaced, in each form that a file may give them."""

import getpass
import html
import json
import unicodedata
from html.entities import codepoint2name as NAMES
from urllib.parse import quote, quote_plus

import pytest

from pomology import paths

HOMES = ("/home/jane", "/Volumes/José", "/data/Jörg Müller", "/data/李小龍")
HOMES += ("/data/o'neil😀", "/data/R&D")


def forms(path):
    """Yield a path as files have it: letters with their accents, and encoded."""
    for each in {unicodedata.normalize(form, path) for form in ("NFC", "NFD")}:
        escaped = each.encode("unicode_escape").decode()  # of Python: \xe9
        yield from (each, escaped, json.dumps(each)[1:-1], json.dumps(json.dumps(each))[3:-3])
        yield from (quote(each), quote(each).lower(), quote(each, safe=""), repr(each.encode()))
        yield from (html.escape(each), each.replace(" ", "\\ "), each.replace("/", "\\/"))
        yield "".join(letter if letter.isascii() else f"&#{ord(letter)};" for letter in each)
        yield "".join(f"&{NAMES[ord(one)]};" if ord(one) in NAMES else one for one in each)
        yield quote_plus(each, safe="/")
        yield "".join(letter if letter.isascii() else f"&#x{ord(letter):X};" for letter in each)


@pytest.fixture
def redact(monkeypatch):
    """redact(text, home, user): as on a machine of this home folder and user."""

    def become(text, home, user="root"):
        monkeypatch.setenv("HOME", home)
        monkeypatch.setattr(getpass, "getuser", lambda: user)
        return paths.redact(text)

    return become


@pytest.mark.parametrize("home", HOMES)
def test_the_home_folder_is_replaced_in_each_form(redact, home):
    tried = [form.strip("b'\"") for form in forms(home)]
    assert len(tried) > 10
    for form in tried:
        assert redact(f'"{form}/data"', home) in ('"~/data"', '"~\\/data"'), form


@pytest.mark.parametrize("folder", ["/data/tést dir/pomology", "/Volumes/Jörg/pomology"])
def test_the_checkout_is_replaced_in_each_form(redact, monkeypatch, folder):
    monkeypatch.setattr(paths, "root", lambda: paths.Path(folder))
    for form in forms(folder):
        form = form.strip("b'\"")
        assert redact(f"out = '{form}'", "/nobody") == "out = '.'", form


@pytest.mark.parametrize("user", ["zebedee", "josé"])
def test_a_user_is_replaced_in_other_paths(redact, user):
    for form in forms(f"/Volumes/{user}/mnist"):
        redacted = redact(form.strip("b'\""), "/nobody", user).lower()
        assert redacted.replace("%2f", "/").replace("\\", "") == "/volumes/user/mnist", form


def test_other_texts_stay_as_they_are(redact):
    for text in ("/data/janet/x", "/data/jane.d", "</pre> pre /etc", "jane", "a\\u00e9b"):
        assert redact(text, "/data/jane", "pre") == text
    assert redact("/data/admin/x", "/", "admin") == "/data/admin/x"
