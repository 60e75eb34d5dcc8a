"""The tables in data/: typed, with units and sources, or refused."""

import json
from functools import cache
from pathlib import Path

import pandas as pd

from nanoengine.errors import NanoengineError

_DTYPES = {"string": "string", "integer": "Int64", "number": "Float64", "date": "string"}


def data_dir() -> Path:
    """Where the data package lies: inside an installed nanoengine, or at the top of the repository."""
    installed = Path(__file__).parent / "_data"
    return installed if installed.is_dir() else Path(__file__).parents[1] / "data"


def load_table(name: str) -> pd.DataFrame:
    """One table of the data package, its columns typed as datapackage.json says.

    Raises NanoengineError naming file, row and column when a value has the wrong type or a required one is missing.
    """
    resource = _resource(name)
    path = data_dir() / resource["path"]
    fields = resource["schema"]["fields"]
    try:
        raw = pd.read_csv(path, dtype="string", keep_default_na=False, na_values=[""])
    except (OSError, pd.errors.ParserError) as error:
        raise NanoengineError(f"{path.name} cannot be read ({error}).") from None
    expected = [field["name"] for field in fields]
    if list(raw.columns) != expected:
        raise NanoengineError(f"{path.name} has the columns {list(raw.columns)}, but datapackage.json says {expected}.")
    return pd.DataFrame({field["name"]: _typed(raw[field["name"]], field, path.name) for field in fields})


def describe_table(name: str) -> dict:
    """What datapackage.json says of a table: title, description, path, licenses, sources, schema.fields with units."""
    return _resource(name)


def table_names() -> list[str]:
    """Names that `load_table` takes."""
    return [resource["name"] for resource in _package()["resources"]]


@cache
def _package() -> dict:
    return json.loads((data_dir() / "datapackage.json").read_text())


def _resource(name: str) -> dict:
    for resource in _package()["resources"]:
        if resource["name"] == name:
            return resource
    raise NanoengineError(f"There is no table {name!r}; there are {', '.join(table_names())}.")


def _typed(column: pd.Series, field: dict, file: str) -> pd.Series:
    if field.get("constraints", {}).get("required") and column.isna().any():
        raise NanoengineError(f"{file}, line {_line(column.isna())}: {field['name']} is empty, but every row needs it.")
    if field["type"] in ("integer", "number"):
        numbers = pd.to_numeric(column, errors="coerce").astype("Float64")
        wrong = numbers.isna() & column.notna()
        if field["type"] == "integer":
            wrong |= (numbers % 1 != 0).fillna(False)
        if wrong.any():
            line = _line(wrong)
            raise NanoengineError(
                f"{file}, line {line}: {field['name']} is {column[line - 2]!r}, but must be a {field['type']}."
            )
        return numbers.astype(_DTYPES[field["type"]])
    return column.astype(_DTYPES[field["type"]])


def _line(wrong: pd.Series) -> int:
    return int(wrong.to_numpy().argmax()) + 2  # the header is line 1
