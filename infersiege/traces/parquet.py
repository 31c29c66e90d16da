"""Parquet files as JSON Lines. They need the optional package `pyarrow`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO

import msgspec

from infersiege.errors import TraceError

_BATCH_ROWS = 1_000


def parquet_rows(path: Path) -> IO[bytes]:
    """The rows of a Parquet file as JSON Lines in a file without a name; line n is row n - 1.

    Dates and times become ISO strings. Raises TraceError where pyarrow is missing or the file is not whole.
    """
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise TraceError(
            f"{path}: is a Parquet file, which needs the package pyarrow", hint="pip install 'infersiege[parquet]'"
        ) from None
    spool = tempfile.TemporaryFile(prefix="infersiege-trace-")  # noqa: SIM115 - the caller closes it
    encoder = msgspec.json.Encoder()
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                spool.write(encoder.encode_lines(batch.to_pylist()))
    except (ValueError, OSError) as error:  # pyarrow's own errors are ValueErrors
        spool.close()
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise TraceError(f"{path}: is no readable Parquet file ({first})", hint="is the file whole?") from None
    spool.flush()
    return spool
