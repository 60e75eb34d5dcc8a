import math
import multiprocessing
import os

import pandas as pd
import pytest

from nanoengine.errors import NanoengineError
from nanoengine.sweep.store import COLUMNS, IDENTITY, SampleStore, read_samples

IDENTITY_VALUES = {
    "backend": "nanoengine",
    "model": 'a "model", with a comma',
    "dtype": "float32",
    "threads": 2,
    "device": "cpu",
    "weight_bytes": 100,
    "kv_bytes_per_token": 10,
    "machine": "M (2 cores)",
    "versions": "python=3.11",
}


def row(**own):
    values = {column: 1 if kind != "str" else "text" for column, (kind, _) in COLUMNS.items()}
    return values | IDENTITY_VALUES | own


def write(path, *rows):
    with SampleStore(path, IDENTITY_VALUES) as store:
        store.append(list(rows))


def test_rows_come_back_with_types_and_the_header_stands_once(tmp_path):
    path = tmp_path / "made" / "on the way" / "sweep.csv"
    write(path, row(order=0, step_ms=1.25), row(order=0, step_ms=2.5, other_cores=math.nan))
    write(path, row(order=1, step_ms=0.1))
    samples = read_samples(path)
    assert list(samples.columns) == list(COLUMNS)
    assert samples.order.tolist() == [0, 0, 1] and samples.step_ms.tolist() == [1.25, 2.5, 0.1]
    assert samples.other_cores.isna().tolist() == [False, True, False]
    assert samples.model.unique().tolist() == [IDENTITY_VALUES["model"]]
    assert pd.api.types.is_integer_dtype(samples.kv_bytes) and pd.api.types.is_float_dtype(samples.step_ms)
    assert path.read_text().count("sweep_id") == 1


@pytest.mark.parametrize("cut", range(1, 40, 7))
def test_a_line_cut_short_is_dropped_and_nothing_else(tmp_path, cut):
    path = tmp_path / "sweep.csv"
    write(path, row(order=0), row(order=1), row(order=2))
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_samples(path).order.tolist() == [0, 1]
    write(path, row(order=7))
    assert read_samples(path).order.tolist() == [0, 1, 7]


def test_a_header_cut_short_is_written_again(tmp_path):
    path = tmp_path / "sweep.csv"
    path.write_text("sweep_id,ord")
    write(path, row())
    assert len(read_samples(path)) == 1


@pytest.mark.parametrize("content", ["batch,step_ms\n1,2\n", "my notes, no newline", "sweep_id,order\n1,2\n"])
def test_a_file_with_other_columns_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "notes.csv"
    path.write_text(content)
    with pytest.raises(NanoengineError, match="does not have the columns"):
        SampleStore(path, IDENTITY_VALUES)
    assert path.read_text() == content


@pytest.mark.parametrize("column", IDENTITY)
def test_samples_of_another_machine_model_or_setting_are_refused(tmp_path, column):
    path = tmp_path / "sweep.csv"
    write(path, row())
    other = 99 if isinstance(IDENTITY_VALUES[column], int) else "another"
    before = path.read_bytes()
    with pytest.raises(NanoengineError, match=f"holds samples with {column} .*choose another file"):
        SampleStore(path, IDENTITY_VALUES | {column: other})
    assert path.read_bytes() == before


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "sweep.csv"
    write(path, row(), row())
    path.write_text(path.read_text() + "garbage\n")
    with pytest.raises(NanoengineError, match="damaged line"):
        read_samples(path)


def test_a_file_in_use_is_refused(tmp_path):
    path = tmp_path / "sweep.csv"
    with (
        SampleStore(path, IDENTITY_VALUES),
        pytest.raises(NanoengineError, match="in use by another sweep"),
    ):
        SampleStore(path, IDENTITY_VALUES)
    SampleStore(path, IDENTITY_VALUES).close()


def test_a_disk_that_fills_up_during_the_sweep_loses_only_the_line_it_cut(tmp_path):
    path = tmp_path / "sweep.csv"
    process = multiprocessing.get_context("spawn").Process(target=_append_until_full, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert not path.read_bytes().endswith(b"\n")
    orders = read_samples(path).order.tolist()
    assert orders and orders == list(range(len(orders)))
    write(path, row(order=1000))
    assert read_samples(path).order.tolist() == [*orders, 1000]


def _append_until_full(path):
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
    with SampleStore(path, IDENTITY_VALUES) as store, pytest.raises(NanoengineError, match="could not be written"):
        for order in range(1000):
            store.append([row(order=order)])


def test_what_is_no_file_and_what_is_missing_are_one_sentence(tmp_path):
    for path in (tmp_path, os.devnull):
        with pytest.raises(NanoengineError, match="is not a file"):
            SampleStore(path, IDENTITY_VALUES)
        with pytest.raises(NanoengineError, match="is not a file"):
            read_samples(path)
    with pytest.raises(NanoengineError, match="cannot be read"):
        read_samples(tmp_path / "missing.csv")
    (tmp_path / "file").write_text("")
    with pytest.raises(NanoengineError, match="cannot be written"):
        SampleStore(tmp_path / "file" / "sweep.csv", IDENTITY_VALUES)
