"""Every profile of both servers, by clients that share no code with them: suite, protocol, body."""

from __future__ import annotations

from pathlib import Path

import pytest
from peers import PEERS, Answer, UnableError, Visit
from serve import pattern

from tests import test_guest
from tests.test_servers import cell, running, site
from tlscost import guest
from tlscost.profiles import profile, profile_names
from tlscost.servers import prepare

SIZE = 36864

# What a peer cannot speak, and why. Tested too: what it learns goes from here.
UNABLE = {
    ("gnutls", "kant2000"): "no SSL 3.0 in Debian's GnuTLS",
    ("gnutls", "hp2001"): "no SSL 3.0 in Debian's GnuTLS",
    ("gnutls", "coradiant2001"): "no SSL 3.0 in Debian's GnuTLS",
    ("gnutls", "des"): "no single DES in TLS",
    ("gnutls", "tls13-x25519mlkem768"): "no ML-KEM before GnuTLS 3.8.8",
    ("tlslite", "des"): "no single DES",
    ("nss", "tls13-x25519mlkem768"): "no ML-KEM before NSS 3.99",
}
PAIRS = [(peer, name) for name in profile_names() for peer in PEERS]


def visited(directory: Path, peer: str, name: str, server: str) -> Answer:
    where = site(directory)
    prepared = prepare(cell(server=server, tls=name, size=SIZE), where)
    with running(prepared, where):
        visit = Visit(
            where, profile(name), f"/{SIZE}", directory, prepared.versions["server_openssl"]
        )
        return PEERS[peer](visit)


@pytest.mark.parametrize("server", ["serve", "nginx"])
@pytest.mark.parametrize(("peer", "name"), [pair for pair in PAIRS if pair not in UNABLE])
def test_peer_negotiates_the_profile_and_gets_the_body(
    tmp_path: Path, peer: str, name: str, server: str
) -> None:
    answer = visited(tmp_path, peer, name, server)
    expected = profile(name)
    assert (answer.protocol, answer.suite) == (expected.protocol, expected.cipher)
    assert answer.body == pattern(SIZE)


@pytest.mark.parametrize("server", ["serve", "nginx"])
@pytest.mark.parametrize("name", ["kant2000", "des"])
def test_a_guest_negotiates_the_profile(tmp_path: Path, name: str, server: str) -> None:
    where = site(tmp_path)
    wanted = cell(server=server, tls=name, size=SIZE)
    made = test_guest.prepare(wanted, where)
    with test_guest.running(made.argv) as process:
        test_guest.wait_for(guest.SERVING, where, process)
        visit = Visit(where, profile(name), f"/{SIZE}", tmp_path, made.versions["server_openssl"])
        answer = PEERS["nss"](visit)
    expected = profile(name)
    assert (answer.protocol, answer.suite) == (expected.protocol, expected.cipher)
    assert answer.body == pattern(SIZE)


@pytest.mark.parametrize(("peer", "name"), UNABLE, ids=str)
def test_peer_is_unable_still(tmp_path: Path, peer: str, name: str) -> None:
    with pytest.raises(UnableError):
        visited(tmp_path, peer, name, "serve")


def test_two_peers_speak_every_profile() -> None:
    for name in profile_names():
        able = [peer for peer in PEERS if (peer, name) not in UNABLE]
        assert len(able) >= 2, name
