"""The results file of a sweep: append-only CSV, one row a sample, safe against being killed at any moment."""

import csv
import io
import os
from pathlib import Path

import pandas as pd

from nanoengine.errors import NanoengineError

try:
    import fcntl
except ImportError:  # Windows has no such locks; two sweeps into one file are the user's care there
    fcntl = None

# Column -> (type, unit or meaning).
COLUMNS = {
    "sweep_id": ("str", "when the sweep began, UTC"),
    "order": ("int64", "position of the visit in the order of measuring, from 0"),
    "visit": ("int64", "how often the cell had been measured before"),
    "sample": ("int64", "position of the step within the visit"),
    "backend": ("str", "engine that ran the step"),
    "model": ("str", ""),
    "dtype": ("str", "of weights and KV"),
    "threads": ("int64", "CPU threads, 0 on a GPU"),
    "device": ("str", "cpu or cuda"),
    "batch": ("int64", "requests in the step"),
    "target_history": ("int64", "tokens, the history that names the cell"),
    "history": ("int64", "tokens that each request attended to in this very step"),
    "kv_bytes": ("int64", "B, batch x history x kv_bytes_per_token"),
    "weight_bytes": ("int64", "B, weights that one step reads"),
    "kv_bytes_per_token": ("int64", "B"),
    "step_ms": ("float64", "ms, wall time of the step"),
    "other_cores": (
        "float64",
        "cores that others kept busy during the visit, empty if it was too short to tell",
    ),
    "started_at": ("str", "start of the visit, UTC"),
    "machine": ("str", ""),
    "versions": ("str", ""),
}
# What all rows of one file share: samples that differ in any of these belong to different sweeps.
IDENTITY = (
    "backend",
    "model",
    "dtype",
    "threads",
    "device",
    "weight_bytes",
    "kv_bytes_per_token",
    "machine",
    "versions",
)
_HEADER = (",".join(COLUMNS) + "\n").encode()


class SampleStore:
    """Appends samples to `path`; `samples` is what earlier, perhaps killed, runs left there.

    Opening drops a last line that was cut short. Raises NanoengineError for a file with other columns, with samples
    of another `identity` (a value for each of IDENTITY), or in use by another sweep. Close it, or use `with`.
    """

    def __init__(self, path: str | Path, identity: dict):
        self.path = Path(path)
        if self.path.exists() and not self.path.is_file():
            raise NanoengineError(f"{self.path} is not a file; name one for the results.")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115 - stays open as long as the store
        except OSError as error:
            raise NanoengineError(f"{self.path} cannot be written ({error.strerror}); choose another file.") from None
        try:
            self._lock()
            self.samples = self._recover()
            self._check_identity(identity)
        except BaseException:
            self._file.close()
            raise

    def append(self, rows: list[dict]) -> None:
        """Write rows (a value for each of COLUMNS) and wait until the disk has them."""
        self._write(_as_csv(rows))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "SampleStore":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NanoengineError(
                f"{self.path} is in use by another sweep; wait for it or choose another file."
            ) from None

    def _recover(self) -> pd.DataFrame:
        self._file.seek(0)
        data = self._file.read()
        samples = _parse(data, self.path)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            self._file.truncate(whole)
        if whole == 0:
            self._write(_HEADER)
        return samples

    def _check_identity(self, identity: dict) -> None:
        for column in IDENTITY if len(self.samples) else ():
            for found in self.samples[column].unique():
                if found != identity[column]:
                    raise NanoengineError(
                        f"{self.path} holds samples with {column} {found}, but this sweep has {identity[column]}; "
                        "choose another file."
                    )

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._file.write(data) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise NanoengineError(
                f"{self.path} could not be written ({error.strerror}); the samples before are kept, and the same "
                "command resumes the sweep."
            ) from None


def read_samples(path: str | Path) -> pd.DataFrame:
    """The samples of a results file, columns as in COLUMNS; a last line cut short is left out.

    Raises NanoengineError for a missing file or one with other columns.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise NanoengineError(f"{path} is not a file; name one that a sweep wrote.")
    try:
        return _parse(path.read_bytes(), path)
    except OSError as error:
        raise NanoengineError(f"{path} cannot be read ({error.strerror}); name a file that a sweep wrote.") from None


def _parse(data: bytes, path: Path) -> pd.DataFrame:
    whole = data[: data.rfind(b"\n") + 1]
    if not (whole.startswith(_HEADER) if whole else _HEADER.startswith(data)):
        raise NanoengineError(
            f"{path} does not have the columns of a sweep's results; choose another file, and it stays as it is."
        )
    dtypes = {column: kind for column, (kind, _) in COLUMNS.items()}
    try:
        return pd.read_csv(
            io.BytesIO(whole or _HEADER), dtype=dtypes, keep_default_na=False, na_values={"other_cores": ""}
        )
    except (ValueError, pd.errors.ParserError) as error:
        raise NanoengineError(f"{path} has a damaged line ({error}); mend it or choose another file.") from None


def _as_csv(rows: list[dict]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writerows({k: "" if v != v else v for k, v in row.items()} for row in rows)  # NaN alone differs from itself
    return text.getvalue().encode()
