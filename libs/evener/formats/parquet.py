"""Writes neutral rows as Parquet: one row group per group, arrays as lists. Needs the extra `parquet`.

The columns are the fields of `NeutralRow`: `ids`, `versions`, `call_of` list<int32>; `loss_mask` list<uint8>; `logprobs` list<float> (NaN
where not sampled), `call_rewards` list<float> (NaN where a call has none); `rewards` list<struct<name: string, value: double>>; `flags`
list<string>; `branch_index`, `n_branches`, `prompt_len`, `session_tokens`, `group_sessions` int32; `reward`, `group_mean`,
`group_deviation`, `temperature` double; `truncated` bool; all others are strings. `reward` is null if nobody graded the session. Hugging
Face `datasets` reads the file as it is, which is why no column is a map.
"""

from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any, Final

from evener.formats.neutral import NO_REGRADES, NeutralRow, RowsRefused, neutral_rows
from evener.formats.port import NeutralFile
from evener.proto.errors import EvenerError
from evener.proto.trajectories import GroupMerged

if TYPE_CHECKING:
    import pyarrow as pa

ARRAYS: Final = {
    "ids": "int32",
    "loss_mask": "uint8",
    "logprobs": "float32",
    "versions": "int32",
    "call_of": "int32",
    "call_rewards": "float32",
}
COLUMN_TYPES: Final = {
    "branch_index": "int32",
    "n_branches": "int32",
    "prompt_len": "int32",
    "session_tokens": "int32",
    "reward": "float64",
    "group_sessions": "int32",
    "group_mean": "float64",
    "group_deviation": "float64",
    "truncated": "bool_",
    "temperature": "float64",
}


NULLABLE: Final = frozenset({"reward", "group_sessions", "group_mean", "group_deviation"})


class ParquetMissing(EvenerError):
    """Install Evener with its extra `parquet`: pip install 'evener[parquet]'."""


def write(groups: Iterable[GroupMerged], sink: IO[bytes], regrades: Mapping[str, str] = NO_REGRADES) -> int:
    """Write all rows of the groups; return their number. Raises ParquetMissing, RowsRefused.

    `regrades`: the name of the regrade whose reward a session has.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra, and slow to import
        import pyarrow.parquet as pq  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as cause:
        msg = "pyarrow is not installed"
        raise ParquetMissing(msg) from cause
    count = 0
    try:
        with pq.ParquetWriter(sink, schema(), compression="zstd") as writer:
            for group in groups:
                rows = neutral_rows(group, regrades)
                if rows:
                    writer.write_table(table(rows))
                count += len(rows)
    except pa.ArrowException as cause:
        msg = f"the rows cannot be written as Parquet: {cause}"
        raise RowsRefused(msg) from cause
    return count


def schema() -> "pa.Schema":
    """Return the columns and their types."""
    import pyarrow as pa  # noqa: PLC0415 - an extra, and slow to import

    def column(name: str) -> Any:
        if name in ARRAYS:
            return pa.list_(getattr(pa, ARRAYS[name])())
        if name == "rewards":
            return pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.float64())]))
        if name == "flags":
            return pa.list_(pa.string())
        return getattr(pa, COLUMN_TYPES[name])() if name in COLUMN_TYPES else pa.string()

    return pa.schema([pa.field(name, column(name), nullable=name in NULLABLE) for name in NeutralRow.__annotations__])


def table(rows: list[NeutralRow]) -> "pa.Table":
    """Return rows as a table of this schema."""
    import pyarrow as pa  # noqa: PLC0415 - an extra, and slow to import

    plain = [{**row, "rewards": [{"name": name, "value": value} for name, value in row["rewards"].items()]} for row in rows]
    return pa.Table.from_pylist(plain, schema=schema())


FORMAT: Final = NeutralFile(write)
