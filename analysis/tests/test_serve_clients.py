"""tlscost-serve driven by real clients: curl, openssl, Python's ssl, wrk and h2load."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from key_updates import Client
from serve import (
    PROFILES,
    SIZES,
    Serve,
    connection_to,
    get,
    need,
    pattern,
    profile_path,
    program,
    receive_all,
    request,
    serving,
    tls_context,
)

TLS13 = "tls13-ecdsa-x25519"
TLS12 = "tls12-ecdhe-rsa2048-aes128gcm"


def expectations(name: str) -> dict[str, str]:
    text = profile_path(name).read_text()
    return dict(re.findall(r"^(\w+) *= *(.*?) *$", text, re.MULTILINE))


LENIENT = """openssl_conf = modules
[modules]
ssl_conf = contexts
[contexts]
system_default = policy
[policy]
MinProtocol = TLSv1
CipherString = ALL:@SECLEVEL=0
"""


def policy(request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with serving(factory.mktemp("serve"), request.param) as running:
        yield running


@pytest.fixture(params=[None, *PROFILES], ids=str, scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serve]:
    """Plain and with each profile."""
    yield from policy(request, tmp_path_factory)


@pytest.fixture(params=PROFILES, scope="module")
def tls_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serve]:
    """With each profile."""
    yield from policy(request, tmp_path_factory)


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment in which an unmodified client's OpenSSL takes weak profiles too."""
    config = tmp_path_factory.mktemp("lenient") / "openssl.cnf"
    config.write_text(LENIENT)
    return {**os.environ, "OPENSSL_CONF": str(config)}


def test_curl_gets_every_size(server: Serve, tmp_path: Path) -> None:
    argv = [need("curl"), "-sk", "--ciphers", "ALL:@SECLEVEL=0", "--tls-max", "1.3", "--tlsv1.0"]
    for size in SIZES:
        argv += ["-o", str(tmp_path / str(size)), f"{server.url}/{size}"]
    subprocess.run(argv, check=True, timeout=20)
    for size in SIZES:
        assert (tmp_path / str(size)).read_bytes() == pattern(size)


def test_python_gets_every_size_on_one_connection(server: Serve) -> None:
    with connection_to(server) as connection:
        if isinstance(connection, ssl.SSLSocket):
            wanted = expectations(str(server.profile))
            assert connection.version() == wanted["expect_protocol"]
            cipher = connection.cipher()
            assert cipher is not None
            assert cipher[0] == wanted["expect_cipher"]
        # All at once: pipelined, and the last one says that it is the last.
        paths = [request(f"/{size}") for size in SIZES]
        paths += [request("/30", method="HEAD"), request("/36864", "Connection: close")]
        connection.sendall(b"".join(paths))
        data = receive_all(connection)
    for size in [*SIZES, None, 36864]:
        head, _, data = data.partition(b"\r\n\r\n")
        length = 0 if size is None else size
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert f"\r\nContent-Length: {30 if size is None else size}".encode() in head
        assert data[:length] == pattern(length)
        data = data[length:]
    assert data == b""
    assert b"\r\nConnection: close" in head


def test_s_client_sees_no_ticket(tls_server: Serve) -> None:
    server = tls_server
    assert server.profile is not None
    argv = [need("openssl"), "s_client", "-msg", "-quiet", "-ign_eof", "-cipher", "ALL:@SECLEVEL=0"]
    argv += ["-connect", f"{server.host}:{server.port}"]
    if expectations(server.profile)["expect_protocol"] == "TLSv1":
        argv += ["-tls1"]
    done = subprocess.run(
        argv, input=request("/30", "Connection: close"), capture_output=True, timeout=20, check=True
    )
    assert done.stdout.count(b"Finished") == 2
    assert b"NewSessionTicket" not in done.stdout
    assert pattern(30) in done.stdout


def test_every_handshake_is_full(tls_server: Serve) -> None:
    server = tls_server
    context = tls_context()
    session = None
    for _ in range(5):
        with connection_to(server, context, session=session) as connection:
            connection.sendall(request("/30", "Connection: close"))
            assert receive_all(connection).endswith(pattern(30))
            assert not connection.session_reused
            session = connection.session
            assert session is None or not session.has_ticket


def test_nothing_leaks_from_one_connection_to_the_next(tls_server: Serve) -> None:
    """TLS objects are used again: what one client asks for must not be answered to another."""
    rich, bare = tls_context(), tls_context()
    rich.set_alpn_protocols(["http/1.1", "h2"])
    for turn in range(10):
        context, name = (rich, "localhost") if turn % 2 == 0 else (bare, None)
        with connection_to(tls_server, context, server_hostname=name) as connection:
            assert connection.selected_alpn_protocol() is None
            if turn % 3 == 0:
                continue  # leaves without a word
            connection.sendall(request("/36864", "Connection: close"))
            assert receive_all(connection).endswith(pattern(36864))


@pytest.mark.parametrize("close", [False, True])
def test_wrk(server: Serve, close: bool, lenient: dict[str, str]) -> None:
    fields = ["-H", "Connection: close"] if close else []
    argv = [need("wrk"), "-t1", "-c8", "-d1s", *fields, f"{server.url}/36864"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=20, env=lenient)
    out = done.stdout
    match = re.search(r"(\d+) requests in", out)
    assert match is not None
    assert int(match[1]) > 0
    assert "Socket errors" not in out, out
    assert "Non-2xx" not in out, out


def test_h2load_http1(server: Serve, lenient: dict[str, str]) -> None:
    ciphers = [] if server.profile is None else ["--ciphers=ALL:@SECLEVEL=0"]
    argv = [need("h2load"), "--h1", "-n200", "-c4", *ciphers, f"{server.url}/36864"]
    out = subprocess.run(
        argv, check=True, capture_output=True, text=True, timeout=20, env=lenient
    ).stdout
    assert "200 succeeded, 0 failed, 0 errored, 0 timeout" in out, out


@pytest.mark.parametrize("profile", [TLS12, TLS13])
@pytest.mark.parametrize("tickets", [True, False])
def test_resumption_works_across_workers(profile: str, tickets: bool, tmp_path: Path) -> None:
    context = tls_context()
    if not tickets:
        context.options |= ssl.OP_NO_TICKET
    with serving(tmp_path, profile, "--resumption", "on", "--cpu-list", all_cpus()) as server:
        session = None
        for turn in range(8):
            with connection_to(server, context, session=session) as connection:
                connection.sendall(request("/30", "Connection: close"))
                assert receive_all(connection).endswith(pattern(30))
                assert connection.session_reused == (turn > 0)
                session = connection.session


def all_cpus() -> str:
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x00\xff garbage\r\n\r\n", 400),
        (b"GET /30 HTTP/1.1\r\n\r\n", 400),
        (request("/31"), 404),
        (request("/30", "Content-Length: 3", method="POST") + b"abc", 405),
        (request("/30", "X: " + "x" * 9000), 431),
        (b"GET /30 HTTP/3.0\r\nHost: a\r\n\r\n", 505),
        (request("/30", "Content-Length: 70000", method="POST") + b"x" * 70000, 413),
    ],
)
def test_bad_requests_are_answered(plain: Serve, data: bytes, status: int) -> None:
    with socket.create_connection((plain.host, plain.port), 5) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        head = receive_all(connection)
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), head


def test_http_1_0_semantics(plain: Serve) -> None:
    with socket.create_connection((plain.host, plain.port), 5) as connection:
        connection.sendall(b"GET /30 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        connection.sendall(b"GET /30 HTTP/1.0\r\n\r\n")
        data = receive_all(connection)
    first, second = data.split(b"HTTP/1.1 200 OK")[1:]
    assert b"Connection: keep-alive\r\n" in first
    assert b"Connection: close\r\n" in second


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with serving(tmp_path_factory.mktemp("plain")) as running:
        yield running


def abort_handshake(server: Serve) -> None:
    """Half a ClientHello, then a reset."""
    with socket.create_connection((server.host, server.port), 5) as raw:
        raw.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("profile", [None, TLS13])
def test_bad_clients_harm_no_good_one(profile: str | None, tmp_path: Path) -> None:
    limits = ["--header-timeout", "1", "--handshake-timeout", "1", "--max-connections", "200"]
    with (
        serving(tmp_path, profile, *limits, "--write-timeout", "1") as server,
        contextlib.ExitStack() as stack,
    ):
        held = []
        for i in range(600):  # far beyond --max-connections
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect((server.host, server.port))
            if i % 3 == 0:
                held.append(connection)
        slow = [c for c in held if connected(c)]
        assert slow
        for connection in slow:  # each drops a few bytes and then says nothing more
            with contextlib.suppress(OSError):
                connection.send(b"GET /30 HT" if profile is None else b"\x16\x03\x01")
        started = time.monotonic()
        for turn in range(20):
            abort_handshake(server)
            assert get(server, SIZES[turn % len(SIZES)], timeout=8) == pattern(
                SIZES[turn % len(SIZES)]
            )
            time.sleep(0.02)
        slow[0].setblocking(True)
        slow[0].settimeout(max(0.1, 8 - (time.monotonic() - started)))
        with contextlib.suppress(ConnectionResetError):
            assert slow[0].recv(1) == b""  # the slow ones are sent away


def connected(connection: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        connection.getpeername()
        return True
    return False


def test_slow_reader_is_cut(tmp_path: Path) -> None:
    with (
        serving(tmp_path, None, "--write-timeout", "0.5") as server,
        socket.socket() as connection,
    ):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((server.host, server.port))
        connection.sendall(request("/1048576") * 8)  # more than the kernel's buffers take
        assert get(server, 1048576) == pattern(1048576)
        assert established(server) == 1
        deadline = time.monotonic() + 8
        while established(server) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert established(server) == 0


def established(server: Serve) -> int:
    """Count the server's connections, by its descriptors."""
    names = []
    for descriptor in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed in between
            names.append(str(descriptor.readlink()))
    return sum(name.startswith("socket:") for name in names) - 1  # the listener


@pytest.mark.parametrize("profile", [None, TLS13])
def test_an_empty_body_is_served_alone(profile: str | None, tmp_path: Path) -> None:
    with serving(tmp_path, profile, sizes=[0]) as server:
        assert get(server, 0) == b""


def test_who_sends_on_after_the_last_answer_still_gets_it(tmp_path: Path) -> None:
    with (
        serving(tmp_path, None, "--max-requests-per-connection", "1") as server,
        socket.create_connection((server.host, server.port), 5) as connection,
    ):
        connection.sendall(request("/36864"))
        assert connection.recv(1, socket.MSG_PEEK) == b"H"
        for _ in range(3):
            time.sleep(0.05)
            connection.sendall(request("/30"))
        assert receive_all(connection).endswith(pattern(36864))


def test_sigterm_ends_it_while_clients_keep_coming(tmp_path: Path) -> None:
    """A saturating load without pause, which never leaves the queue of connections empty."""
    generator = program("tlscost-load")
    with serving(tmp_path, None, "--drain-timeout", "0.5") as server:
        argv = [generator, "--url", f"{server.url}/30", "--connections", "512", "--timeout", "5"]
        with subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as clients:
            try:
                time.sleep(0.5)
                assert server.stop() == 0
            finally:
                clients.terminate()


@pytest.mark.parametrize("profile", [None, TLS13])
def test_sigterm_drains_a_transfer_under_way(profile: str | None, tmp_path: Path) -> None:
    with serving(tmp_path, profile, "--size", "50MB", "--drain-timeout", "10") as server:
        with connection_to(server) as quiet, connection_to(server) as connection:
            quiet.sendall(request("/30"))
            assert quiet.recv(1000).endswith(pattern(30))
            connection.sendall(request("/50000000"))
            first = connection.recv(100)
            server.process.send_signal(signal.SIGTERM)
            assert quiet.recv(1000) == b""  # who waits for nothing is let go
            with pytest.raises(OSError, match=r"refused|reset|timed out"):
                socket.create_connection((server.host, server.port), 1).close()
            body = (first + receive_all(connection)).partition(b"\r\n\r\n")[2]
            assert body == pattern(50000000)
        assert server.process.wait(timeout=10) == 0


def test_drain_ends_at_its_timeout(tmp_path: Path) -> None:
    with (
        serving(tmp_path, None, "--drain-timeout", "0.3", "--size", "50MB") as server,
        socket.create_connection((server.host, server.port), 5) as connection,
    ):
        connection.sendall(request("/50000000"))
        assert connection.recv(1) == b"H"
        assert server.stop() == 0
        assert "1 connections were not done" in server.log.read_text()


def test_descriptors_run_out_and_come_back(tmp_path: Path) -> None:
    with serving(tmp_path, None, "--max-connections", "1000") as server:
        subprocess.run(
            [need("prlimit"), f"--pid={server.process.pid}", "--nofile=24:24"], check=True
        )
        with contextlib.ExitStack() as stack:
            for _ in range(40):
                connection = stack.enter_context(
                    socket.create_connection((server.host, server.port), 5)
                )
                connection.sendall(b"GET /30 HT")
            time.sleep(0.3)
            assert server.process.poll() is None
        assert get(server, 30) == pattern(30)


def test_requests_per_connection_are_limited(tmp_path: Path) -> None:
    with (
        serving(tmp_path, None, "--max-requests-per-connection", "3") as server,
        socket.create_connection((server.host, server.port), 5) as connection,
    ):
        connection.sendall(request("/30") * 5)
        data = receive_all(connection)
    assert data.count(b"200 OK") == 3
    assert data.count(b"Connection: close") == 1


def test_idle_connections_are_closed(tmp_path: Path) -> None:
    with (
        serving(tmp_path, None, "--keepalive-timeout", "0.2") as server,
        socket.create_connection((server.host, server.port), 5) as connection,
    ):
        connection.sendall(request("/30"))
        assert receive_all(connection).endswith(pattern(30))


def test_many_at_once_on_all_cpus(tmp_path: Path) -> None:
    wrong: list[int] = []

    def client(server: Serve) -> None:
        for size in SIZES:
            if get(server, size, timeout=10) != pattern(size):
                wrong.append(size)

    with serving(tmp_path, TLS13, "--cpu-list", all_cpus()) as server:
        threads = [threading.Thread(target=client, args=(server,)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_few_key_updates_are_taken(tmp_path: Path) -> None:
    with (
        serving(tmp_path, TLS13) as server,
        socket.create_connection((server.host, server.port), 5) as raw,
        Client(raw) as client,
    ):
        raw.sendall(client.updates(30))
        raw.sendall(client.updates(1) + client.write(request("/30", "Connection: close")))
        assert client.read(receive_all(raw)).endswith(pattern(30))


def test_a_flood_of_key_updates_is_cut_off(tmp_path: Path) -> None:
    """OpenSSL takes them within one call for as long as they come: others would wait."""
    with (
        serving(tmp_path, TLS13) as server,
        socket.create_connection((server.host, server.port), 5) as raw,
        Client(raw) as client,
    ):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 << 20)
        flood = client.updates(20_000)
        server.process.send_signal(signal.SIGSTOP)  # so that it finds many at once
        raw.sendall(flood)
        server.process.send_signal(signal.SIGCONT)
        with contextlib.suppress(ConnectionResetError):
            assert receive_all(raw) == b""
        assert get(server, 30) == pattern(30)
