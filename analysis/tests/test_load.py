"""tlscost-load against tlscost-serve, openssl s_server, and servers that misbehave."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hdrh.histogram import HdrHistogram
from serve import binary, need, pattern, profile_path, program, serving

TLS12 = "tls12-krsa2048-aes128gcm"
TLS13 = "tls13-ecdsa-x25519"
PROFILES = [None, TLS12, TLS13]
BODY = pattern(30)
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\nConnection: close\r\n\r\n" + BODY


def load_argv(*url_and_options: object) -> list[str]:
    return [program("tlscost-load"), "--json", "--url", *map(str, url_and_options)]


def load(*url_and_options: object, code: int = 0) -> dict[str, Any]:
    """Run to its end and return the summary, whose counts must add up."""
    done = subprocess.run(
        load_argv(*url_and_options), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    counts = summary["counts"]
    ended = counts["completed"] + sum(errors(summary).values())
    assert counts["started"] == ended + summary["abandoned"]
    return summary


def errors(summary: dict[str, Any]) -> dict[str, int]:
    counts = summary["counts"]
    return {k: n for k, n in counts.items() if k.startswith("error_") and n}


def latencies(summary: dict[str, Any], kind: str) -> HdrHistogram:
    histogram = HdrHistogram.decode(summary["latency"][kind]["histogram"])
    assert histogram.get_total_count() == summary["latency"][kind]["count"]
    return histogram


@contextlib.contextmanager
def listening(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """Accept connections, each handed to `behave` on a thread of its own; yields the base URL."""

    def guard(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            behave(connection)

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=guard, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def s_server(profile: str, tmp: Path, *options: str) -> Iterator[str]:
    """Run openssl s_server with a certificate of the profile's kind; yields the base URL."""
    openssl = need("openssl")
    argv = [binary(), "--profile", str(profile_path(profile)), "--write-certificate", str(tmp)]
    subprocess.run(argv, check=True, capture_output=True)
    (tmp / "30").write_bytes(BODY)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with subprocess.Popen(
        [
            *[openssl, "s_server", "-accept", f"127.0.0.1:{port}", "-WWW", "-quiet"],
            *["-key", "key.pem", "-cert", "cert.pem", *options],
        ],
        cwd=tmp,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            for _ in range(200):
                with contextlib.suppress(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                time.sleep(0.02)
            yield f"https://127.0.0.1:{port}"
        finally:
            process.kill()


def answer(reply: bytes) -> Callable[[socket.socket], None]:
    def behave(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(reply)

    return behave


def reset_midway(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(GOOD[:-10])
    time.sleep(0.02)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def never_answer(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def dribble(connection: socket.socket) -> None:
    connection.recv(65536)
    for byte in GOOD:
        connection.sendall(bytes([byte]))
        time.sleep(0.001)


def chunked(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for at in range(0, 30, 10):
        connection.sendall(b"a\r\n" + BODY[at : at + 10] + b"\r\n")
        time.sleep(0.005)
    connection.sendall(b"0\r\n\r\n")


def endless(connection: socket.socket) -> None:
    """Send chunks of one byte from a file: faster than they can be parsed."""
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    with tempfile.TemporaryFile() as file:
        file.writelines(b"1\r\n%c\r\n" % byte for byte in pattern(4093 * 256))
        file.flush()
        while True:
            connection.sendfile(file, 0)


@pytest.mark.parametrize("profile", PROFILES, ids=str)
@pytest.mark.parametrize("keepalive", [False, True], ids=["close", "keepalive"])
def test_every_size_is_fetched_and_counted(
    profile: str | None, keepalive: bool, tmp_path: Path
) -> None:
    options = ["--profile", profile_path(profile)] if profile else []
    options += ["--keepalive"] if keepalive else []
    with serving(tmp_path, profile) as server:
        for size, n in ((0, 60), (30, 200), (36864, 100), (1048576, 30)):
            url = f"{server.url}/{size}"
            summary = load(url, "--expect-size", size, "--transactions", n, *options)
            counts = summary["counts"]
            connections = 16 if keepalive else n
            assert counts["completed"] == n
            assert counts["bytes"] == n * size
            assert counts["connections"] == connections
            assert counts["handshakes_full"] == (connections if profile else 0)
            assert counts["handshakes_resumed"] == counts["tickets"] == 0
            assert not errors(summary)
            assert latencies(summary, "connect").get_total_count() == connections
            assert latencies(summary, "last_byte").get_total_count() == n
            assert (summary["latency"]["handshake"] is None) == (profile is None)


@pytest.mark.parametrize("check", ["status", "size", "pattern"])
def test_checks_agree_on_a_good_server(check: str, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        summary = load(f"{server.url}/1048576", "--check", check, "--transactions", 40)
        assert summary["counts"]["bytes"] == 40 * 1048576


@pytest.mark.parametrize("behave", [answer(GOOD), dribble, chunked])
def test_answers_in_any_pieces_complete(behave: Callable[[socket.socket], None]) -> None:
    with listening(behave) as url:
        summary = load(url, "--expect-size", 30, "--transactions", 8, "--connections", 4)
        assert summary["counts"]["completed"] == 8


@pytest.mark.parametrize(
    ("behave", "kind"),
    [
        pytest.param(reset_midway, "reset", id="resets-midway"),
        pytest.param(answer(GOOD[:-1]), "reset", id="closes-midway"),
        pytest.param(answer(b""), "reset", id="closes-at-once"),
        pytest.param(answer(GOOD.replace(b"30", b"29")[:-1]), "length", id="wrong-length"),
        pytest.param(answer(GOOD + b"x"), "length", id="more-than-said"),
        pytest.param(answer(GOOD[:-1] + b"\0"), "content", id="wrong-content"),
        pytest.param(answer(GOOD.replace(b"200 OK", b"503 No")), "status", id="wrong-status"),
        pytest.param(answer(b"220 ready\r\n" * 9), "protocol", id="garbage"),
        pytest.param(never_answer, "timeout", id="never-answers"),
    ],
)
def test_a_misbehaving_server_has_its_kind_of_error(
    behave: Callable[[socket.socket], None], kind: str
) -> None:
    options = ["--expect-size", 30, "--connections", 4, "--timeout", 0.3]
    with listening(behave) as url:
        summary = load(url, "--transactions", 8, *options, code=1)
        assert errors(summary) == {f"error_{kind}": 8}


def test_an_endless_body_ends_at_the_timeout() -> None:
    """A server faster than the load generator, whose socket therefore is never empty."""
    with listening(endless) as url:
        options = ["--timeout", 0.5, "--connections", 2, "--transactions", 2]
        summary = load(f"{url}/", *options, code=1)
    assert errors(summary) == {"error_timeout": 2}


def test_a_tls_server_that_sends_on_is_left(tmp_path: Path) -> None:
    """More than it announced, for ever, once the response is whole."""
    argv = [binary(), "--profile", str(profile_path(TLS13)), "--write-certificate", str(tmp_path)]
    subprocess.run(argv, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

    def behave(raw: socket.socket) -> None:
        with context.wrap_socket(raw, server_side=True) as connection:
            connection.recv(65536)
            connection.sendall(GOOD)
            while True:
                connection.sendall(BODY * 4096)

    with listening(behave) as url:
        options = ["--transactions", 4, "--connections", 2, "--expect-size", 30]
        summary = load(url.replace("http:", "https:"), *options)
    assert summary["counts"]["completed"] == 4


def test_a_dead_server_is_not_hammered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    options = ["--duration", 0.5, "--connections", 4]
    summary = load(f"http://127.0.0.1:{port}/", *options, code=1)
    refused = errors(summary).pop("error_connect")
    assert refused == summary["counts"]["started"]
    # Each of the 4 connections tries again after 10 ms.
    assert 8 <= refused <= 4 * (0.5 / 0.010 + 1)


def test_plain_http_on_a_tls_port_is_a_handshake_error() -> None:
    with listening(answer(GOOD)) as url:
        tls_url = url.replace("http:", "https:")
        summary = load(tls_url, "--transactions", 4, "--connections", 2, code=1)
        assert errors(summary) == {"error_handshake": 4}


def test_no_local_port_is_a_resource_error() -> None:
    """Ten ports for sixteen connections, in a network of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for a network namespace with few ports")
    inside = textwrap.dedent("""
        import socket, subprocess, sys
        from pathlib import Path
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40009")
        with socket.create_server(("127.0.0.1", 30000)) as listener:
            sys.exit(subprocess.run(sys.argv[1:]).returncode)
    """)
    argv = load_argv("http://127.0.0.1:30000/", "--duration", 0.5, "--drain-timeout", 0.1)
    done = subprocess.run(
        [need("unshare"), "-n", sys.executable, "-c", inside, *argv],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    summary = json.loads(done.stdout)
    assert summary["abandoned"] == 10
    # The other 6 connections, at most one try in 10 ms each.
    assert 6 <= errors(summary)["error_resource"] <= 6 * (0.5 / 0.010 + 1)


@pytest.mark.parametrize("profile", [TLS12, TLS13])
@pytest.mark.parametrize("fraction", [0.29, 0.5, 1.0])
def test_the_resumed_fraction_is_exact(profile: str, fraction: float, tmp_path: Path) -> None:
    with serving(tmp_path, profile, "--resumption", "on") as server:
        summary = load(
            f"{server.url}/30",
            *["--profile", profile_path(profile), "--transactions", 100, "--connections", 4],
            *["--resumption", fraction],
        )
    counts = summary["counts"]
    # Nothing can be resumed before the first full handshakes have brought sessions.
    resumed = round(100 * fraction) if fraction < 1 else 96
    assert counts["handshakes_resumed"] == resumed
    assert counts["handshakes_full"] == 100 - resumed
    assert counts["completed"] == 100
    assert counts["tickets"] > 0


@pytest.mark.parametrize(
    ("profile", "options"),
    [
        pytest.param(TLS12, ["-tls1_2", "-no_ticket"], id="session-ids"),
        pytest.param(TLS12, ["-tls1_2"], id="tls12-tickets"),
        pytest.param(TLS13, ["-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"], id="tls13"),
    ],
)
def test_resumption_with_openssl_s_server(profile: str, options: list[str], tmp_path: Path) -> None:
    with s_server(profile, tmp_path, *options) as url:
        summary = load(
            *[f"{url}/30", "--profile", profile_path(profile), "--expect-size", 30],
            *["--transactions", 40, "--connections", 1, "--resumption", 0.75],
        )
    counts = summary["counts"]
    assert counts["completed"] == 40
    assert (counts["handshakes_full"], counts["handshakes_resumed"]) == (10, 30)


def test_a_refused_resumption_is_an_error(tmp_path: Path) -> None:
    with serving(tmp_path, TLS13) as server:
        options = ["--profile", profile_path(TLS13), "--resumption", 0.5]
        summary = load(f"{server.url}/30", "--transactions", 40, "--connections", 1, *options)
    assert errors(summary) == {"error_resumption": 20}
    assert summary["counts"]["handshakes_full"] == 40


@pytest.mark.parametrize(
    ("profile", "expected", "offered"),
    [
        (TLS12, "AES128-GCM-SHA256", "AES256-GCM-SHA384"),
        (TLS13, "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"),
    ],
)
def test_what_the_profile_does_not_expect_is_an_error(
    profile: str, expected: str, offered: str, tmp_path: Path
) -> None:
    """The client's profile offers two suites, and expects the one that the server has not."""
    text = profile_path(profile).read_text()
    head, conf = text.split("[ssl_conf]")
    altered = tmp_path / "altered.cnf"
    altered.write_text(head + "[ssl_conf]" + conf.replace(expected, f"{expected}:{offered}"))
    suites = ["-cipher", offered] if profile == TLS12 else ["-ciphersuites", offered]
    with s_server(profile, tmp_path, *suites) as url:
        options = ["--transactions", 6, "--connections", 1]
        summary = load(f"{url}/30", "--profile", altered, *options, code=1)
    assert errors(summary) == {"error_profile": 6}
    assert summary["counts"]["handshakes_full"] == 6


@pytest.mark.parametrize("connections", [300, 2])
def test_a_stall_shows_in_open_loop(connections: int, tmp_path: Path) -> None:
    """The server stands still for 1 s, so the 100 arrivals meanwhile wait 0 to 1 s.

    They do so on the wire or, where connections are few, before one is free.
    """
    with serving(tmp_path) as server:
        argv = load_argv(
            *[f"{server.url}/30", "--rate", 100, "--arrivals", "constant", "--duration", 2],
            *["--connections", connections],
        )
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            time.sleep(0.4)
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(1)
            server.process.send_signal(signal.SIGCONT)
            summary = json.loads(process.communicate(timeout=20)[0])
    counts = summary["counts"]
    assert counts["completed"] + summary["unstarted"] == 200
    assert summary["unstarted"] == 0
    assert (counts["late"] >= 80) == (connections == 2)
    histogram = latencies(summary, "last_byte")
    half_or_more = sum(
        item.count_added_in_this_iter_step
        for item in histogram.get_recorded_iterator()
        if item.value_iterated_to >= 5e8
    )
    assert 40 <= half_or_more <= 100
    assert histogram.get_max_value() >= 9e8


@pytest.mark.parametrize("arrivals", ["constant", "poisson", "pareto:1.3"])
def test_the_rate_is_kept(arrivals: str, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        options = ["--rate", 500, "--arrivals", arrivals, "--duration", 1, "--connections", 200]
        summary = load(f"{server.url}/30", *options)
    begun = summary["counts"]["started"] + summary["unstarted"]
    assert begun == 500 if arrivals == "constant" else 300 < begun < 700


def test_the_page_says_what_the_summary_says(tmp_path: Path) -> None:
    fd = os.memfd_create("page", 0)
    threads = min(2, len(os.sched_getaffinity(0)))
    with serving(tmp_path) as server:
        argv = load_argv(
            *[f"{server.url}/30", "--page", f"/proc/self/fd/{fd}", "--transactions", 101],
            *["--cpus", threads],
        )
        done = subprocess.run(argv, pass_fds=[fd], capture_output=True, text=True, check=True)
    counts = json.loads(done.stdout)["counts"]
    page = os.pread(fd, os.fstat(fd).st_size, 0)
    os.close(fd)
    head = struct.unpack_from("<8sIIIIQQQQII", page)
    magic, version, found, kinds, _, _, offset, _, total, connections, state = head
    assert (magic, version, found, connections, state) == (b"tslpage1", 1, threads, 16, 2)
    assert total == len(page)
    stride = -(-kinds * 8 // 64) * 64
    rows = [struct.unpack_from(f"<{kinds}Q", page, offset + i * stride) for i in range(threads)]
    assert [sum(column) for column in zip(*rows, strict=True)] == list(counts.values())
    assert counts["completed"] == 101


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_order(number: signal.Signals, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        argv = load_argv(f"{server.url}/30", "--cpus", min(2, len(os.sched_getaffinity(0))))
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            time.sleep(0.3)
            process.send_signal(number)
            summary = json.loads(process.communicate(timeout=10)[0])
    assert process.returncode == 0
    assert summary["abandoned"] == 0
    assert summary["counts"]["started"] == summary["counts"]["completed"] > 0


def test_no_more_threads_than_connections(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        options = ["--connections", 1, "--transactions", 10]
        cpus = min(2, len(os.sched_getaffinity(0)))
        summary = load(f"{server.url}/30", "--cpus", cpus, *options)
    assert summary["threads"] == 1
    assert summary["counts"]["completed"] == 10


def test_draining_gives_up_after_its_time() -> None:
    with listening(never_answer) as url:
        options = ["--duration", 0.2, "--drain-timeout", 0.2, "--connections", 5]
        summary = load(url, *options, code=1)
    assert summary["abandoned"] == 5
    assert not errors(summary)
    assert 0.4e9 <= summary["elapsed_ns"] < 5e9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--url", "ftp://127.0.0.1/"], "http"),
        (["--url", "nonsense"], "http(s)://ADDRESS:PORT/PATH"),
        (["--url", "http://127.0.0.1:1/", "--rate", "-1"], "--rate"),
        (["--url", "http://127.0.0.1:1/", "--arrivals", "poisson"], "--rate"),
        (["--url", "http://127.0.0.1:1/", "--rate", "1", "--arrivals", "weibull"], "weibull"),
        (["--url", "http://127.0.0.1:1/", "--resumption", "1.5"], "--resumption"),
        (["--url", "http://127.0.0.1:1/", "--resumption", "0.5"], "https"),
        (["--url", "http://127.0.0.1:1/", "--connections", "0"], "--connections"),
        (["--url", "http://127.0.0.1:1/", "--check", "all"], "--check"),
        (["--url", "http://127.0.0.1:1/", "--cpu-list", "0-"], "--cpu-list"),
        (["--url", "http://127.0.0.1:1/", "--page", "/nowhere/page"], "/nowhere/page"),
        (["--url", "https://127.0.0.1:1/", "--profile", "/nowhere.cnf"], "/nowhere.cnf"),
        (["--url", "http://127.0.0.1:1/", "stray"], "stray"),
        ([], "--url"),
    ],
)
def test_bad_options_exit_2_and_name_themselves(options: list[str], words: str) -> None:
    argv = [program("tlscost-load"), *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""
