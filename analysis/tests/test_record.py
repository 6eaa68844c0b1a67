import gzip
import json
import re

import corpus
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import encode, header, idle, seal, window, write

from tlscost import frame, record
from tlscost.errors import TlscostError

WHOLE = encode(header(), [idle(), window()])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cell.jsonl"


def refused(path, content):
    path.write_bytes(content)
    with pytest.raises(TlscostError) as caught:
        record.read(path)
    assert caught.value.exit_code == 2
    assert str(path) in str(caught.value)
    assert "Remedy" in str(caught.value)
    return str(caught.value)


def test_reads_every_line(path):
    path.write_bytes(WHOLE)
    assert record.is_whole(path)
    item = record.read(path)
    assert item.header.cell.size_bytes == 36864
    assert item.header.provenance["cpu_model"] == "Test CPU"
    assert [line.transactions for line in item.windows] == [1000]
    assert item.windows[0].counts[0].corrected == 2e8
    assert item.idle[0].counts[0].corrected is None


def test_unknown_keys_are_kept(path):
    write(path, [window(weather="fine")], flavour="new")
    item = record.read(path)
    assert item.header.cell.model_extra == {"flavour": "new"}
    assert item.windows[0].model_extra["weather"] == "fine"


@pytest.mark.parametrize("kept", [0, 1, len(WHOLE) // 2, len(WHOLE) - 1])
def test_cut_short(path, kept):
    path.write_bytes(WHOLE[:kept])
    assert not record.is_whole(path)
    assert "cut short" in refused(path, WHOLE[:kept])


def test_cut_at_a_line(path):
    message = refused(path, b"".join(WHOLE.splitlines(keepends=True)[:2]))
    assert f"{path}:2: expected the footer" in message


def test_a_line_missing(path):
    lines = WHOLE.splitlines(keepends=True)
    assert "speaks of 3 lines before it, there are 2" in refused(
        path, b"".join(lines[:1] + lines[2:])
    )


def test_altered(path):
    message = refused(path, WHOLE.replace(b'"transactions": 1000', b'"transactions": 2000'))
    assert "altered" in message
    assert not record.is_whole(path)


def test_unknown_schema(path):
    head = header() | {"schema": "tlscost-record/2"}
    message = refused(path, encode(head, [window()]))
    assert f"{path}:1: schema 'tlscost-record/2', this program reads 'tlscost-record/1'" in message


@pytest.mark.parametrize("build", sorted(record.SANITIZER_BUILDS))
def test_sanitizer_builds(path, build):
    head = header() | {"program": {"version": "0.1.0", "build": build}}
    assert build in refused(path, encode(head, [window()]))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"transactions": -1}, "transactions"),
        ({"transactions": "12"}, "transactions"),
        ({"cpus": [{"cpu": 0}]}, "cpus.0.idle_ns"),
        ({"counts": [{"cpu": 0}]}, "counts.0.event"),
        ({"end_ns": 10_000_000_000}, "end_ns"),
        ({"type": "weather"}, "tag"),
    ],
)
def test_a_sealed_record_of_wrong_content_names_line_and_key(path, change, named):
    message = refused(path, encode(header(), [idle(), window(**change)]))
    assert f"{path}:3: " in message
    assert named in message


def test_a_compressed_record_is_the_same_record(path):
    packed = path.with_name("cell.jsonl.gz")
    packed.write_bytes(gzip.compress(WHOLE))
    path.write_bytes(WHOLE)
    one, other = record.read(packed), record.read(path)
    assert (one.header, one.windows, one.footer) == (other.header, other.windows, other.footer)
    assert record.read_header(packed) == one.header
    assert frame.record_paths([path.parent]) == [path, packed]


@pytest.mark.parametrize("content", [WHOLE, gzip.compress(WHOLE)[:-30], b"\x1f\x8b" + WHOLE])
def test_a_damaged_compressed_record_is_refused(path, content):
    packed = path.with_name("cell.jsonl.gz")
    packed.write_bytes(content)
    with pytest.raises(TlscostError, match=r"cell\.jsonl\.gz: cannot be read: "):
        record.read(packed)


def test_missing_file(path):
    assert not record.is_whole(path)
    with pytest.raises(TlscostError, match=r"cell\.jsonl: cannot be read: No such file"):
        record.read(path)


FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def is_read(path):
    """Whether the file is read; a refusal must be ours and name file and line."""
    try:
        record.read(path)
    except TlscostError as refusal:
        named = rf"{re.escape(str(path))}:\d+: .*Remedy: "
        assert re.match(named, str(refusal), re.DOTALL)  # noqa: PT017  # either outcome is right
        return False
    return True


@corpus.replayed("record")
def test_corpus(path, expected):
    assert is_read(path) == expected


def survives(path, content):
    path.write_bytes(content)
    is_read(path)


@FUZZ
@given(content=st.binary(max_size=400))
def test_fuzz_arbitrary_bytes(path, content):
    survives(path, content)


@FUZZ
@given(content=corpus.mutated("record"))
def test_fuzz_mutated_bytes(path, content):
    survives(path, content)


@FUZZ
@given(content=corpus.mutated("record"))
def test_fuzz_mutated_bytes_sealed_again(path, content):
    """So that what was altered gets past the checksum."""
    survives(path, seal(content.removesuffix(b"\n").rpartition(b"\n")[0] + b"\n"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=5,
)


@FUZZ
@given(data=st.data())
def test_fuzz_sealed_lines_with_any_value_anywhere(path, data):
    lines = [header(), idle(), window()]
    target = data.draw(st.sampled_from(lines))
    while isinstance(target, dict | list) and len(target) > 0:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(target[key], dict | list) or data.draw(st.booleans()):
            target[key] = data.draw(JSON)
            break
        target = target[key]
    survives(path, encode(json.loads(json.dumps(lines[0])), lines[1:]))
