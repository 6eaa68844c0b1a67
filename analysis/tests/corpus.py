"""Kept inputs of readers: the files of `corpus/READER/read` and `corpus/READER/refused`."""

from pathlib import Path

import pytest
from hypothesis import strategies as st

__all__ = ["mutated", "replayed"]

ROOT = Path(__file__).parent / "corpus"


def _files(reader: str) -> list[Path]:
    files = sorted((ROOT / reader).glob("*/*"))
    assert {path.parent.name for path in files} == {"read", "refused"}
    return files


def replayed(reader: str) -> pytest.MarkDecorator:
    """Give a test each file of the reader's corpus, and whether it is to be read."""
    return pytest.mark.parametrize(
        ("path", "expected"),
        [
            pytest.param(path, path.parent.name == "read", id=f"{path.parent.name}-{path.name}")
            for path in _files(reader)
        ],
    )


def mutated(reader: str) -> st.SearchStrategy[bytes]:
    """Contents of the reader's corpus, altered in up to four places."""

    @st.composite
    def draw_one(draw: st.DrawFn) -> bytes:
        content = bytearray(draw(st.sampled_from(contents)))
        for _ in range(draw(st.integers(1, 4))):
            at = draw(st.integers(0, len(content)))
            content[at : at + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
        return bytes(content)

    contents = [path.read_bytes() for path in _files(reader)]
    return draw_one()
