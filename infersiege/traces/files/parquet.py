"""Parquet files as JSON Lines. They need the optional package `pyarrow`."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import msgspec

from infersiege.errors import TraceError

_BATCH_ROWS = 1_000


def write_rows(path: Path, file: IO[bytes], spool: IO[bytes]) -> None:
    """The rows of a Parquet file as JSON Lines; line n is row n - 1.

    Dates and times become ISO strings. Raises TraceError where pyarrow is missing or the file is not whole, OSError
    where there is no room for them.
    """
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise TraceError(
            f"{path}: is a Parquet file, which needs the package pyarrow", hint="pip install 'infersiege[parquet]'"
        ) from None
    encoder = msgspec.json.Encoder()
    try:
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(batch_size=_BATCH_ROWS):
                lines = encoder.encode_lines(batch.to_pylist())
                spool.write(lines)
    except (ValueError, OSError) as error:  # pyarrow's own errors are ValueErrors, and OSErrors without a number
        if isinstance(error, OSError) and error.errno is not None:
            raise
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise TraceError(f"{path}: is no readable Parquet file ({first})", hint="is the file whole?") from None
