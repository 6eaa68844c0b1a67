"""TLS profiles: data files that say which protocol, suites, groups and key a server uses."""

import configparser
from dataclasses import dataclass, field

from tlscost.errors import TlscostError
from tlscost.paths import profiles_dir

__all__ = ["OFF", "Profile", "profile", "profile_names"]

OFF = "off"


@dataclass(frozen=True)
class Profile:
    """What `data/profiles/NAME.cnf` says, as far as Python needs it.

    The C programs read and check the same file themselves (workloads/common/profile.h).

    Attributes
    ----------
    openssl : tuple of str
        OpenSSLs of workloads/openssl-legacy that have what it asks for, the preferred one first;
        empty: the system's has.
    """

    name: str
    key: str
    protocol: str
    cipher: str
    weak: bool
    openssl: tuple[str, ...]
    description: str
    ssl_conf: dict[str, str] = field(hash=False)


def profile_names() -> list[str]:
    """Return the names that a plan's `tls` may hold besides "off", sorted."""
    return sorted(path.stem for path in profiles_dir().glob("*.cnf"))


def profile(name: str) -> Profile:
    """Read a profile by its name."""
    path = profiles_dir() / f"{name}.cnf"
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # OpenSSL's names have capitals
    try:
        with path.open(encoding="utf-8") as lines:
            parser.read_file(lines)
        ours = parser["profile"]
        return Profile(
            name=name,
            key=ours["key"],
            protocol=ours["expect_protocol"],
            cipher=ours["expect_cipher"],
            weak=ours.getboolean("weak", fallback=False),
            openssl=tuple(ours.get("openssl", "").split()),
            description=ours.get("description", ""),
            ssl_conf=dict(parser["ssl_conf"]),
        )
    except FileNotFoundError:
        raise TlscostError(
            f"TLS profile {name!r}: no {path}; allowed: {', '.join([OFF, *profile_names()])}"
        ) from None
    except (OSError, UnicodeDecodeError, configparser.Error, KeyError, ValueError) as error:
        raise TlscostError(f"TLS profile {name!r}: {path}: {error}") from error
