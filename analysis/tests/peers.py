"""TLS clients that share no code with the servers under test: what they negotiate and get."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serve import need
from tlslite.api import HandshakeSettings, TLSConnection
from tlslite.constants import CipherSuite

from tlscost.openssl_build import HOST, openssl
from tlscost.profiles import Profile
from tlscost.servers import Site

__all__ = ["PEERS", "Answer", "UnableError", "Visit"]

TIMEOUT_S = 60
NSS_POLICY = """
library=
name=Policy
NSS=flags=policyOnly,moduleDB
config="allow=RSA-MIN=512"
"""


class UnableError(Exception):
    """The peer shook no hands; its own words say why."""


@dataclass(frozen=True)
class Answer:
    """Protocol and suite as the peer calls them, and the body that came."""

    protocol: str
    suite: str
    body: bytes


@dataclass(frozen=True)
class Suite:
    """What peers call the suite that OpenSSL calls by a profile's `expect_cipher`.

    Attributes
    ----------
    number : int
        IANA's.
    nss : str
        As tstclnt says it after "using".
    gnutls : str
        As a priority string asks for it.
    description : str
        As gnutls-cli says it, less the signature.
    tlslite : tuple of str
        Names of cipher, of MAC and of key exchange; "" for what a TLS 1.3 suite does not name.
    """

    number: int
    nss: str
    gnutls: str
    description: str
    tlslite: tuple[str, str, str]


SUITES = {
    "RC4-MD5": Suite(
        0x0004,
        "128-bit RC4 with 128-bit MD5 MAC",
        "+RSA:+ARCFOUR-128:+MD5",
        "(RSA)-(ARCFOUR-128)-(MD5)",
        ("rc4", "md5", "rsa"),
    ),
    "RC4-SHA": Suite(
        0x0005,
        "128-bit RC4 with 160-bit SHA1 MAC",
        "+RSA:+ARCFOUR-128:+SHA1",
        "(RSA)-(ARCFOUR-128)-(SHA1)",
        ("rc4", "sha", "rsa"),
    ),
    "DES-CBC-SHA": Suite(
        0x0009,
        "56-bit DES with 160-bit SHA1 MAC",
        "+RSA:+DES-CBC:+SHA1",
        "(RSA)-(DES-CBC)-(SHA1)",
        ("des", "sha", "rsa"),
    ),
    "DES-CBC3-SHA": Suite(
        0x000A,
        "112-bit 3DES with 160-bit SHA1 MAC",
        "+RSA:+3DES-CBC:+SHA1",
        "(RSA)-(3DES-CBC)-(SHA1)",
        ("3des", "sha", "rsa"),
    ),
    "AES128-SHA": Suite(
        0x002F,
        "128-bit AES with 160-bit SHA1 MAC",
        "+RSA:+AES-128-CBC:+SHA1",
        "(RSA)-(AES-128-CBC)-(SHA1)",
        ("aes128", "sha", "rsa"),
    ),
    "AES128-GCM-SHA256": Suite(
        0x009C,
        "128-bit AES-GCM with 128-bit AEAD MAC",
        "+RSA:+AES-128-GCM:+AEAD",
        "(RSA)-(AES-128-GCM)",
        ("aes128gcm", "aead", "rsa"),
    ),
    "ECDHE-RSA-AES128-GCM-SHA256": Suite(
        0xC02F,
        "128-bit AES-GCM with 128-bit AEAD MAC",
        "+ECDHE-RSA:+GROUP-X25519:+AES-128-GCM:+AEAD",
        "(ECDHE-X25519)-(AES-128-GCM)",
        ("aes128gcm", "aead", "ecdhe_rsa"),
    ),
    "TLS_AES_128_GCM_SHA256": Suite(
        0x1301,
        "128-bit AES-GCM with 128-bit AEAD MAC",
        "+ECDHE-ECDSA:+GROUP-X25519:+AES-128-GCM:+AEAD",
        "(ECDHE-X25519)-(AES-128-GCM)",
        ("aes128gcm", "aead", ""),
    ),
    "TLS_CHACHA20_POLY1305_SHA256": Suite(
        0x1303,
        "256-bit CHACHA20POLY1305 with 128-bit AEAD MAC",
        "+ECDHE-ECDSA:+GROUP-X25519:+CHACHA20-POLY1305:+AEAD",
        "(ECDHE-X25519)-(CHACHA20-POLY1305)",
        ("chacha20-poly1305", "aead", ""),
    ),
}
VERSIONS = {"SSLv3": 0, "TLSv1": 1, "TLSv1.1": 2, "TLSv1.2": 3, "TLSv1.3": 4}


@dataclass(frozen=True)
class Visit:
    """A server, the profile that it serves by, the request, and room for a peer's files.

    Attributes
    ----------
    server_openssl : str
        The OpenSSL that the server runs with, as the record has it.
    """

    site: Site
    profile: Profile
    path: str
    directory: Path
    server_openssl: str

    @property
    def suite(self) -> Suite:
        """What peers call the profile's suite."""
        return SUITES[self.profile.cipher]

    @property
    def request(self) -> bytes:
        """What is asked of the server."""
        return f"GET {self.path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


def _nss(visit: Visit) -> Answer:
    database = visit.directory / "nss"
    database.mkdir()
    _said([need("certutil"), "-N", "-d", f"sql:{database}", "--empty-password"])
    with (database / "pkcs11.txt").open("a") as modules:
        modules.write(NSS_POLICY)
    version = VERSIONS[visit.profile.protocol]
    name = "ssl3" if version == 0 else f"tls1.{version - 1}"
    argv = [need("tstclnt"), "-h", visit.site.address, "-p", str(visit.site.port)]
    argv += ["-d", f"sql:{database}", "-o", "-v", "-V", f"{name}:{name}"]
    argv += ["-c", f":{visit.suite.number:04X}"]
    if groups := visit.profile.ssl_conf.get("Groups"):
        argv += ["-I", groups.lower()]
    said, body = _said(argv, visit.request)
    found = re.search(r"SSL version 3\.(\d) using (.+)", said)
    if found is None:
        raise UnableError(said)
    protocol = next(name for name, minor in VERSIONS.items() if minor == int(found.group(1)))
    suite = visit.profile.cipher if found.group(2) == visit.suite.nss else found.group(2)
    return Answer(protocol, suite, body)


def _gnutls(visit: Visit) -> Answer:
    protocol = visit.profile.protocol.replace("TLSv", "TLS")
    version = {"SSLv3": "SSL3.0", "TLS1": "TLS1.0"}.get(protocol, protocol)
    priority = f"NONE:+VERS-{version}:+COMP-NULL:+SIGN-ALL:+CTYPE-ALL:{visit.suite.gnutls}"
    if groups := visit.profile.ssl_conf.get("Groups"):
        priority = priority.replace("X25519", groups.upper())
    log = visit.directory / "gnutls.log"
    argv = [need("gnutls-cli"), visit.site.address, "--port", str(visit.site.port), "--insecure"]
    argv += ["--priority", f"{priority}:%VERIFY_ALLOW_BROKEN", "--logfile", str(log)]
    reading, writing = os.pipe()  # it leaves at its input's end, whatever is still to come
    try:
        os.write(writing, visit.request)
        said, body = _run(argv, reading)
    finally:
        os.close(reading)
        os.close(writing)
    text = log.read_text() if log.exists() else ""
    found = re.search(r"^- Description: \((.+?)-X\.509\)-(.+)$", text, re.MULTILINE)
    if found is None:
        raise UnableError(said + text)
    suite = re.sub(r"-\((RSA|ECDSA)-[^)]+\)", "", found.group(2))
    suite = visit.profile.cipher if suite == visit.suite.description else suite
    spoken = visit.profile.protocol if found.group(1) == version else found.group(1)
    return Answer(spoken, suite, body)


def _tlslite(visit: Visit) -> Answer:
    cipher, mac, key_exchange = visit.suite.tlslite
    settings = HandshakeSettings()
    settings.minKeySize = 512
    settings.minVersion = settings.maxVersion = (3, VERSIONS[visit.profile.protocol])
    settings.cipherNames = [cipher]
    settings.macNames = [mac]
    if key_exchange:
        settings.keyExchangeNames = [key_exchange]
    if groups := visit.profile.ssl_conf.get("Groups"):
        settings.eccCurves = settings.keyShares = [groups.lower()]
    with socket.create_connection((visit.site.address, visit.site.port), TIMEOUT_S) as raw:
        connection = TLSConnection(raw)
        try:
            connection.handshakeClientCert(settings=settings)
        except ValueError as error:  # it has no such cipher or group
            raise UnableError(str(error)) from error
        number, version = connection.session.cipherSuite, connection.version
        connection.sendall(visit.request)
        received = bytearray()
        while part := connection.recv(65536):  # fails where no close_notify came
            received += part
    spoken = next(name for name, minor in VERSIONS.items() if version == (3, minor))
    suite = CipherSuite.ietfNames[number]
    return Answer(
        spoken,
        visit.profile.cipher if number == visit.suite.number else suite,
        _body(bytes(received)),
    )


def _openssl(visit: Visit) -> Answer:
    """Run s_client: the system's, or the other one of ours where there are two."""
    environment, program = [], need("openssl")
    if names := visit.profile.openssl:
        name = next((name for name in names if f" {name}" not in visit.server_openssl), names[0])
        made = openssl(name, HOST)
        environment, program = ["env", *made.environment()], str(made.directory / "bin/openssl")
    protocol = visit.profile.protocol
    argv = [*environment, program, "s_client", "-connect", visit.site.authority, "-brief"]
    argv += ["-ign_eof", "-min_protocol", protocol, "-max_protocol", protocol]
    settings = visit.profile.ssl_conf
    argv += ["-cipher", settings.get("CipherString", "DEFAULT")]
    argv += ["-ciphersuites", settings["Ciphersuites"]] if "Ciphersuites" in settings else []
    argv += ["-groups", settings["Groups"]] if "Groups" in settings else []
    said, body = _said(argv, visit.request)
    spoken = re.search(r"^Protocol version: (\S+)$", said, re.MULTILINE)
    suite = re.search(r"^Ciphersuite: (\S+)$", said, re.MULTILINE)
    if spoken is None or suite is None:
        raise UnableError(said)
    return Answer(spoken.group(1), suite.group(1), body)


def _said(argv: list[str], given: bytes = b"") -> tuple[str, bytes]:
    """Run a client to its end; what it said, and the body that it got."""
    with tempfile.TemporaryFile() as request:  # tstclnt takes no end of a pipe for an end
        request.write(given)
        request.seek(0)
        return _run(argv, request.fileno())


def _run(argv: list[str], stdin: int) -> tuple[str, bytes]:
    done = subprocess.run(argv, stdin=stdin, capture_output=True, timeout=TIMEOUT_S, check=False)
    return done.stderr.decode(errors="replace"), _body(done.stdout)


def _body(response: bytes) -> bytes:
    return response.partition(b"\r\n\r\n")[2]


PEERS: dict[str, Callable[[Visit], Answer]] = {
    "nss": _nss,
    "gnutls": _gnutls,
    "tlslite": _tlslite,
    "openssl": _openssl,
}
