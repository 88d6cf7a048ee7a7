"""Reads rows: JSON lines, JSON, Parquet, and data sets of the Hugging Face hub by its own package."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from evener.tasks.imports.port import DataRow, SourceUnreadable

HUB: Final = "hf:"
"""The prefix of a data set's name on the hub: `hf:OWNER/NAME`, or `hf:OWNER/NAME@CONFIGURATION`."""
ROW_SUFFIXES: Final = (".jsonl", ".json", ".parquet")
BATCH_ROWS: Final = 256

_row: Final = msgspec.json.Decoder(dict[str, Any])
_rows: Final = msgspec.json.Decoder(list[dict[str, Any]])


def read_rows(source: str, split: str | None = None) -> Iterator[DataRow]:
    """Yield the rows of a file, of all such files in a folder in the order of their names, or of a data set. Raises SourceUnreadable."""
    if source.startswith(HUB):
        yield from _of_hub(source.removeprefix(HUB), split)
        return
    path = Path(source)
    files = sorted(file for file in path.iterdir() if file.suffix in ROW_SUFFIXES) if path.is_dir() else [path]
    if not files:
        msg = f"{source} holds no file of rows ({', '.join(ROW_SUFFIXES)})"
        raise SourceUnreadable(msg)
    for file in files:
        try:
            yield from _of_file(file)
        except (OSError, msgspec.DecodeError) as cause:
            msg = f"{file}: {getattr(cause, 'strerror', None) or cause}"
            raise SourceUnreadable(msg) from cause


def _of_file(file: Path) -> Iterator[DataRow]:
    match file.suffix:
        case ".parquet":
            yield from _of_parquet(file)
        case ".json":
            yield from _rows.decode(file.read_bytes())
        case _:
            with file.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield _of_line(file, number, line)


def _of_line(file: Path, number: int, line: bytes) -> DataRow:
    try:
        return _row.decode(line)
    except msgspec.DecodeError as cause:
        msg = f"{file}, line {number}: {cause}"
        raise SourceUnreadable(msg) from cause


def _of_parquet(file: Path) -> Iterator[DataRow]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra, and slow to import
        import pyarrow.parquet as pq  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as cause:
        msg = f"{file} needs the extra `parquet` (pip install 'evener[parquet]')"
        raise SourceUnreadable(msg) from cause
    try:
        for batch in pq.ParquetFile(file).iter_batches(BATCH_ROWS):
            yield from batch.to_pylist()
    except pa.ArrowException as cause:
        msg = f"{file}: {cause}"
        raise SourceUnreadable(msg) from cause


def _of_hub(name: str, split: str | None) -> Iterator[DataRow]:
    """Yield the rows of a data set as `datasets` streams them. Without a split: of the test split, or the only one."""
    try:
        import datasets  # noqa: PLC0415 - not a dependency, and slow to import
    except ImportError as cause:
        msg = f"{HUB}{name} needs the package `datasets` (pip install datasets)"
        raise SourceUnreadable(msg) from cause
    name, _, configuration = name.partition("@")
    try:
        found = datasets.load_dataset(name, configuration or None, streaming=True)
        wanted = split or ("test" if "test" in found else next(iter(found)))
        if wanted not in found:
            msg = f"{HUB}{name} has the splits {', '.join(found)}, not {wanted!r}"
            raise SourceUnreadable(msg)
        yield from found[wanted]
    except (OSError, ValueError, RuntimeError, LookupError) as cause:
        msg = f"{HUB}{name}: {cause}"
        raise SourceUnreadable(msg) from cause
