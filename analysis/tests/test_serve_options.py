"""tlscost-serve's command line: what it refuses, and with which exit code; what it writes."""

from __future__ import annotations

import os
import ssl
import subprocess
from pathlib import Path

import pytest
from serve import (
    binary,
    connection_to,
    need,
    pattern,
    profile_path,
    receive_all,
    request,
    serving,
)

TLS13 = "tls13-ecdsa-x25519"
TLS12 = "tls12-ecdhe-rsa2048-aes128gcm"


def run_serve(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [binary(), *options], capture_output=True, text=True, timeout=20, check=False
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--size", "-1"], "--size: size '-1'"),
        (["--size", "251MB"], "at most 250MB"),
        ([], "--size"),
        (["--size", "30", "--cpu-list", "4096"], "CPU 4096 is not there"),
        (["--size", "30", "--cpus", "0"], "--cpus: '0': expected a whole number"),
        (["--size", "30", "--cpus", "0,1"], "--cpus: '0,1': expected a whole number"),
        (["--size", "30", "--listen", "localhost:1"], "numeric address"),
        (["--size", "30", "--resumption", "maybe"], "expected on or off"),
        (["--size", "30", "--profile", "nosuch.cnf"], "nosuch.cnf"),
        (["--size", "30", "--header-timeout", "0"], "--header-timeout"),
        (["--size", "30", "--no-such-option"], "no-such-option"),
        (["--size", "30", "surplus"], "surplus"),
        (["--size", "30", "--certificate", "x"], "--profile"),
    ],
)
def test_bad_options_exit_2(options: list[str], says: str) -> None:
    done = run_serve(*options)
    assert done.returncode == 2
    assert says in done.stderr


def test_more_cpus_than_there_are_exits_3() -> None:
    done = run_serve("--size", "30", "--cpus", str(len(os.sched_getaffinity(0)) + 1))
    assert done.returncode == 3
    assert "--cpus: " in done.stderr
    assert "give fewer" in done.stderr


def test_cpus_takes_the_first_ones(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    with serving(tmp_path, None, "--cpus", str(len(allowed))) as server:
        tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
        pinned = [os.sched_getaffinity(int(task.name)) for task in tasks]
    assert all({cpu} in pinned for cpu in allowed)


def test_address_in_use_exits_1(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        done = run_serve("--size", "30", "--listen", f"{server.host}:{server.port}")
    assert done.returncode == 1
    assert "cannot listen: Address already in use" in done.stderr


def test_unusable_certificate_exits_2(tmp_path: Path) -> None:
    options = ["--profile", str(profile_path(TLS13)), "--certificate", str(tmp_path)]
    done = run_serve("--size", "30", "--listen", "127.0.0.1:0", *options)
    assert done.returncode == 2
    assert "cert.pem" in done.stderr


def test_missing_suite_exits_3(tmp_path: Path) -> None:
    text = profile_path(TLS12).read_text()
    profile = tmp_path / "none.cnf"
    profile.write_text(text.replace("CipherString = ", "CipherString = NO-SUCH-SUITE:"))
    done = run_serve("--size", "30", "--listen", "127.0.0.1:0", "--profile", str(profile))
    assert done.returncode == 3
    assert "NO-SUCH-SUITE" in done.stderr


def test_weak_profile_off_loopback_is_refused() -> None:
    # 192.0.2.1 is for documentation: no machine has it, so nothing is exposed either way.
    weak = str(profile_path("tls12-krsa512-aes128gcm"))
    done = run_serve("--size", "30", "--profile", weak, "--listen", "192.0.2.1:0")
    assert done.returncode == 2
    assert "--allow-weak" in done.stderr
    done = run_serve("--size", "30", "--profile", weak, "--listen", "192.0.2.1:0", "--allow-weak")
    assert done.returncode == 1
    assert "warning" in done.stderr
    assert "cannot listen" in done.stderr


def test_a_new_key_is_not_written_where_others_may_look(tmp_path: Path) -> None:
    """Who had an older, readable key.pem open must not read the new key through it."""
    (tmp_path / "key.pem").touch(0o644)
    with (tmp_path / "key.pem").open() as reader:
        done = run_serve(
            "--profile", str(profile_path(TLS13)), "--write-certificate", str(tmp_path)
        )
        assert done.returncode == 0, done.stderr
        assert reader.read() == ""
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600


def test_written_certificate_and_bodies_are_used(tmp_path: Path) -> None:
    certificate = tmp_path / "certificate"
    bodies = tmp_path / "bodies"
    certificate.mkdir()
    bodies.mkdir()
    profile = str(profile_path(TLS13))
    done = run_serve("--profile", profile, "--write-certificate", str(certificate))
    assert done.returncode == 0, done.stderr
    assert (certificate / "key.pem").stat().st_mode & 0o777 == 0o600
    done = run_serve("--size", "36KiB", "--size", "30", "--write-bodies", str(bodies))
    assert done.returncode == 0, done.stderr
    assert (bodies / "36864").read_bytes() == pattern(36864)
    context = ssl.create_default_context(cafile=certificate / "cert.pem")
    with (
        serving(tmp_path, TLS13, "--certificate", str(certificate)) as server,
        connection_to(server, context, server_hostname="localhost") as connection,
    ):
        connection.sendall(request("/30", "Connection: close"))
        assert receive_all(connection).endswith(pattern(30))


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_weak_profile_is_served_in_a_namespace_of_its_own() -> None:
    weak = profile_path("tls12-krsa512-aes128gcm")
    script = (
        "ip link set lo up && ip address add 198.18.0.1/32 dev lo && "
        f"timeout -s TERM 2 {binary()} --listen 198.18.0.1:0 --size 30 --profile {weak} --json"
    )
    done = subprocess.run(
        [need("unshare"), "--net", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    assert '"address": "198.18.0.1"' in done.stdout, done.stderr
    assert "warning: profile tls12-krsa512-aes128gcm is weak" in done.stderr
