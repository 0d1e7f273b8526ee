"""A machine without network and with empty caches, and errors of one line."""

import socket

import pytest
from huggingface_hub import constants

from pomology.errors import PomologyError


def cut_off(monkeypatch, tmp_path_factory) -> list:
    """Every look-up or connection fails at once, and is listed in what this returns."""
    calls: list = []

    def refuse(*arguments, **_):
        calls.append(arguments)
        raise socket.gaierror(-2, "Name or service not known")

    def connect(self, address):
        # Workers talk through sockets in the file system.
        return local(self, address) if self.family == socket.AF_UNIX else refuse(address)

    local = socket.socket.connect
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return calls


def one_line_error(call, *fragments):
    """What `call` refuses in one line, which holds the fragments."""
    with pytest.raises(PomologyError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for fragment in fragments:
        assert fragment in text
    return text
