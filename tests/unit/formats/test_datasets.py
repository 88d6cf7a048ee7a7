"""Hugging Face `datasets` reads our Parquet as it is: every value of every row comes back. `make test-sources` installs it."""

from pathlib import Path

import numpy as np
import pytest
from tests.support.trainer_groups import several_rows

from evener.formats import parquet
from evener.formats.neutral import neutral_rows

pytestmark = pytest.mark.sources


def test_rows_come_back_through_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets  # noqa: PLC0415 - of the extra `sources`

    event = several_rows()
    with (tmp_path / "rows.parquet").open("wb") as sink:
        parquet.write([event], sink)
    read = datasets.load_dataset("parquet", data_files=str(tmp_path / "rows.parquet"), split="train", cache_dir=str(tmp_path / "cache"))

    assert set(read.features) == set(parquet.schema().names)
    for row, back in zip(neutral_rows(event), read, strict=True):
        for name in parquet.ARRAYS:
            np.testing.assert_array_equal(np.array(back[name], dtype=row[name].dtype), row[name])  # type: ignore[literal-required]
        assert {one["name"]: one["value"] for one in back["rewards"]} == row["rewards"]
        assert [back[name] for name in ("rollout_id", "group_mean", "session_tokens")] == [
            row["rollout_id"],
            row["group_mean"],
            row["session_tokens"],
        ]
