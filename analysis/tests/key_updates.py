"""A TLS 1.3 client that changes its keys at will, which Python's ssl cannot: libssl by ctypes."""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
from typing import Any

import pytest

__all__ = ["Client"]

NOT_REQUESTED = 0  # SSL_KEY_UPDATE_NOT_REQUESTED: the peer need not change its own


def _library() -> Any:
    name = ctypes.util.find_library("ssl")
    if name is None:
        pytest.skip("libssl is not installed")
    library = ctypes.CDLL(name)  # brings libcrypto's names too
    for maker in ("TLS_client_method", "SSL_CTX_new", "SSL_new", "BIO_s_mem", "BIO_new"):
        getattr(library, maker).restype = ctypes.c_void_p
    return library


class Client:
    """A connection over `raw` whose handshake is done; what is said is returned, not sent."""

    def __init__(self, raw: socket.socket) -> None:
        self._lib = _library()
        self._ctx = ctypes.c_void_p(self._lib.SSL_CTX_new(self._of("TLS_client_method")))
        self._ssl = ctypes.c_void_p(self._lib.SSL_new(self._ctx))
        self._from_peer, self._to_peer = (
            ctypes.c_void_p(self._lib.BIO_new(self._of("BIO_s_mem"))) for _ in range(2)
        )
        self._lib.SSL_set_bio(self._ssl, self._from_peer, self._to_peer)
        self._lib.SSL_set_connect_state(self._ssl)
        while self._lib.SSL_do_handshake(self._ssl) != 1:
            raw.sendall(self._said())
            part = raw.recv(65536)
            assert part, "the server closed within the handshake"
            self._lib.BIO_write(self._from_peer, part, len(part))
        raw.sendall(self._said())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._lib.SSL_free(self._ssl)
        self._lib.SSL_CTX_free(self._ctx)

    def _of(self, maker: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(getattr(self._lib, maker)())

    def _said(self) -> bytes:
        length = self._lib.BIO_ctrl_pending(self._to_peer)
        buffer = ctypes.create_string_buffer(length)
        assert self._lib.BIO_read(self._to_peer, buffer, length) == length or length == 0
        return buffer.raw

    def updates(self, count: int) -> bytes:
        """Change the keys so often; the messages that tell the server."""
        for _ in range(count):
            assert self._lib.SSL_key_update(self._ssl, NOT_REQUESTED) == 1
            assert self._lib.SSL_do_handshake(self._ssl) == 1
        return self._said()

    def write(self, text: bytes) -> bytes:
        """Encrypt with the keys of now."""
        assert self._lib.SSL_write(self._ssl, text, len(text)) == len(text)
        return self._said()

    def read(self, received: bytes) -> bytes:
        """Decrypt a record of the server's."""
        self._lib.BIO_write(self._from_peer, received, len(received))
        buffer = ctypes.create_string_buffer(16384)
        got = self._lib.SSL_read(self._ssl, buffer, len(buffer))
        return buffer.raw[: max(got, 0)]
