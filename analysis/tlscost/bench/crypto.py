"""What a transaction's cryptography costs by itself, as `openssl speed` has it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from tlscost.errors import TlscostError

__all__ = ["CryptoCost", "crypto_cost"]


@dataclass(frozen=True)
class CryptoCost:
    """CPU seconds of the public-key operations of a handshake and of one body byte, per side."""

    client_handshake_s: float
    server_handshake_s: float
    client_byte_s: float
    server_byte_s: float

    def client_s(self, size_bytes: int) -> float:
        """CPU seconds of the client's cryptography for a full-handshake transaction."""
        return self.client_handshake_s + size_bytes * self.client_byte_s

    def server_s(self, size_bytes: int) -> float:
        """CPU seconds of the server's cryptography for a full-handshake transaction."""
        return self.server_handshake_s + size_bytes * self.server_byte_s


NONE = CryptoCost(0.0, 0.0, 0.0, 0.0)


def _speed(cpu: int, seconds: int, *what: str) -> list[float]:
    """Run `openssl speed` pinned to `cpu`; the numbers of its one result line, per second."""
    command = ["openssl", "speed", "-mr", "-seconds", str(seconds), *what]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("+F")]
    if done.returncode != 0 or len(results) != 1:
        raise TlscostError(f"{' '.join(command)}: no result; it said: {done.stderr[-400:]}")
    return [float(number) for number in results[0].split(":")[3:]]


def crypto_cost(profile: str, cpu: int, seconds: int = 2) -> CryptoCost:
    """Measure the cryptography of a profile's full handshake and of its bulk cipher.

    Parameters
    ----------
    profile : name of the TLS profile, or ``off`` (costs nothing).
    cpu : the CPU to measure on.
    seconds : of each `openssl speed` run [s].

    Counted are the public-key operations (RSA, ECDSA, X25519 key generation and derivation) and
    the AEAD over the body in 16 KiB records; hashes and key schedules are not, for any peer.
    """
    if profile == "off":
        return NONE
    bulk = ("-bytes", "16384", "-evp", "aes-128-gcm")
    encrypt = 1.0 / _speed(cpu, seconds, *bulk)[0]
    decrypt = 1.0 / _speed(cpu, seconds, "-decrypt", *bulk)[0]
    if profile == "tls12-krsa2048-aes128gcm":
        private, public = _speed(cpu, seconds, "rsa2048")
        return CryptoCost(1.0 / public, 1.0 / private, decrypt, encrypt)
    if profile == "tls13-ecdsa-x25519":
        sign, verify = _speed(cpu, seconds, "ecdsap256")
        exchange = 2.0 / _speed(cpu, seconds, "ecdhx25519")[0]
        return CryptoCost(exchange + 1.0 / verify, exchange + 1.0 / sign, decrypt, encrypt)
    raise TlscostError(
        f"bench: no list of operations for profile {profile!r}; "
        "known: off, tls12-krsa2048-aes128gcm, tls13-ecdsa-x25519",
        exit_code=2,
    )
