"""OpenSSLs that profiles ask for: what is refused, by what words. test_profile_peers runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tlscost.debian import PrivateApt
from tlscost.errors import CANNOT, TlscostError
from tlscost.openssl import in_guest
from tlscost.openssl_build import HOST, openssl, recipe_of


def test_an_unknown_openssl_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TlscostError, match=r"OpenSSL '0\.9\.5': allowed: 1\.1\.1, 3\.5"):
        recipe_of("0.9.5")


def test_a_server_linked_with_an_openssl_that_the_profile_cannot_use_is_refused() -> None:
    with pytest.raises(TlscostError, match=r"tls13-x25519mlkem768: needs OpenSSL 3\.5.*so\.1\.1"):
        in_guest("tls13-x25519mlkem768", "i386", soname="1.1")


def test_an_archive_that_is_not_the_pinned_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(self: PrivateApt, source: str, into: Path) -> None:
        (into / f"{source}_1.1.1w.orig.tar.gz").write_bytes(b"not it")

    monkeypatch.setenv("TLSCOST_CACHE", str(tmp_path))
    monkeypatch.setattr(PrivateApt, "update", lambda self, kind: None)
    monkeypatch.setattr(PrivateApt, "download_source", download)
    with pytest.raises(TlscostError, match="expected the pinned cf3098950cb4") as refused:
        openssl("1.1.1", HOST)
    assert refused.value.exit_code == CANNOT


def test_a_mirror_without_the_release_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(self: PrivateApt, kind: str) -> None:
        raise TlscostError("apt-get update: 404", CANNOT)

    monkeypatch.setenv("TLSCOST_CACHE", str(tmp_path))
    monkeypatch.setattr(PrivateApt, "update", update)
    with pytest.raises(TlscostError, match=r"404.*bullseye.*put its openssl_\*\.orig") as refused:
        openssl("1.1.1", HOST)
    kept = Path(str(refused.value).rsplit(" ", 1)[1])
    assert kept.parent == tmp_path
    assert not list(tmp_path.glob("*.partial"))
