"""Servers: nginx takes every profile as tlscost-serve does; files and command lines of the rest."""

import http.client
import shutil
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tlscost.cell import Cell
from tlscost.errors import BAD_INPUT, CANNOT, TlscostError
from tlscost.profiles import OFF, profile, profile_names
from tlscost.servers import Server, Site, prepare

SIZE = 36864


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def site(directory: Path) -> Site:
    return Site(directory, "127.0.0.1", free_port(), (0,))


def cell(**values: object) -> Cell:
    return Cell.model_validate({"server": "nginx", "tls": "off", "size": SIZE, **values})


@contextmanager
def running(server: Server, where: Site) -> Iterator[None]:
    """Start a server on loopback, wait until it answers, and stop it by its own process id."""
    process = subprocess.Popen(server.argv, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                probe.settimeout(0.05)
                if probe.connect_ex((where.address, where.port)) == 0:
                    break
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            break
        yield
    finally:
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said


def client_context(name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


@pytest.mark.parametrize("load", [{}, {"keepalive": True}, {"resumption": 0.5}], ids=str)
@pytest.mark.parametrize("name", [OFF, *profile_names()])
def test_nginx_accepts_the_configuration_of_every_profile(
    tmp_path: Path, name: str, load: dict[str, object]
) -> None:
    server = prepare(cell(tls=name, load=load), site(tmp_path))
    checked = subprocess.run([*server.argv, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr
    assert "[emerg]" not in checked.stderr


@pytest.mark.parametrize("server_name", ["nginx", "serve"])
@pytest.mark.parametrize("name", [it for it in profile_names() if not profile(it).openssl])
def test_both_servers_negotiate_the_profile_and_serve_the_same_body(
    tmp_path: Path, name: str, server_name: str
) -> None:
    where = site(tmp_path)
    server = prepare(cell(server=server_name, tls=name), where)
    expected = profile(name)
    with running(server, where):
        connection = http.client.HTTPSConnection(
            where.address, where.port, context=client_context(name), timeout=10
        )
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        cipher = connection.sock.cipher()
        assert cipher is not None
        assert (connection.sock.version(), cipher[0]) == (expected.protocol, expected.cipher)
        connection.request("GET", f"/{SIZE}")
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200
        assert len(body) == SIZE
        assert (
            not connection.sock
            or connection.sock.session is None
            or (not connection.sock.session.has_ticket)
        )
        connection.close()
    key = tmp_path / "certificate" / "key.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_both_servers_serve_the_same_bytes(tmp_path: Path) -> None:
    bodies = []
    for name in ("nginx", "serve"):
        directory = tmp_path / name
        directory.mkdir()
        where = site(directory)
        with running(prepare(cell(server=name), where), where):
            connection = http.client.HTTPConnection(where.address, where.port, timeout=10)
            connection.request("GET", f"/{SIZE}")
            bodies.append(connection.getresponse().read())
            connection.close()
    assert len(bodies[0]) == SIZE
    assert bodies[0] == bodies[1]


def test_command_gets_its_values_and_keeps_its_arguments(tmp_path: Path) -> None:
    where = Site(tmp_path / "with space", "127.0.0.1", 4242, (0,))
    where.directory.mkdir()
    server = prepare(
        cell(
            server={
                "command": "srv --root {bodies} 'two words' -p {port} --cpus={cpu_list}",
                "url": "http://{address}:{port}/{size}",
            }
        ),
        where,
    )
    bodies = where.directory / "bodies"
    assert server.argv == [
        *["srv", "--root", str(bodies), "two words", "-p", "4242", "--cpus=0"],
    ]
    assert server.url == f"http://127.0.0.1:4242/{SIZE}"
    assert server.check == "pattern"
    assert (bodies / str(SIZE)).stat().st_size == SIZE


def test_foreign_bodies_are_checked_by_size_only(tmp_path: Path) -> None:
    server = prepare(cell(server={"command": "srv", "url": "http://127.0.0.1/x"}), site(tmp_path))
    assert server.check == "size"


def test_certificate_without_tls_is_bad_input(tmp_path: Path) -> None:
    foreign = {"command": "srv {certificate}", "url": "http://127.0.0.1/"}
    with pytest.raises(TlscostError, match="tls = off") as refusal:
        prepare(cell(server=foreign), site(tmp_path))
    assert refusal.value.exit_code == BAD_INPUT


def test_missing_nginx_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(TlscostError, match="apt-get install nginx-light") as refusal:
        prepare(cell(), site(tmp_path))
    assert refusal.value.exit_code == CANNOT
