"""How many bytes a stored value takes, the scales of its group included."""

import re

from nanoengine.errors import NanoengineError

DTYPE_BYTES = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "float8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    # Formats whose group and scale are part of their definition.
    "float8-block": 1 + 4 / 128**2,  # one float32 scale for 128 x 128 values (DeepSeek-V3)
    "mxfp4": 0.5 + 1 / 32,  # one 8-bit scale for 32 values (OCP microscaling)
    "nvfp4": 0.5 + 1 / 16,  # one float8 scale for 16 values
    "q8_0": 1 + 2 / 32,  # llama.cpp: one float16 scale for 32 values
    "q4_0": 0.5 + 2 / 32,
}
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}
_SCALE_BYTES = 2  # of "int4:128": a float16 scale for each group


def canonical_dtype(name: str, where: str = "dtype") -> str:
    """The full name of a dtype, as "bfloat16" for "bf16"; raises NanoengineError for an unknown one.

    int4, int8 and float8 may carry a group: "int4:128" has one 16-bit scale for 128 values. Without a group, scales
    are taken as too few to count (one per row of a matrix).
    """
    match = re.fullmatch(r"([a-z0-9_-]+)(?::([1-9]\d*))?", str(name).removeprefix("torch."))
    base = match and _SHORT.get(match[1], match[1])
    if base not in DTYPE_BYTES or (match[2] and base not in ("int4", "int8", "float8")):
        raise NanoengineError(
            f"{where}: the dtype {name!r} is not one of {', '.join(DTYPE_BYTES)}, or int4, int8 or float8 with a group "
            'as in "int4:128".'
        )
    return base + (f":{match[2]}" if match[2] else "")


def dtype_bytes(name: str) -> float:
    """Bytes of one value, as 0.5156 for "int4:128" (half a byte, and two bytes of scale for 128 values)."""
    base, _, group = canonical_dtype(name).partition(":")
    return DTYPE_BYTES[base] + (_SCALE_BYTES / int(group) if group else 0.0)


def weight_dtypes(spec: str | dict[str, str]) -> dict[str, str]:
    """A weight dtype by part, "default" among them: of "int4:128" or "int4:128,head=bf16,experts=mxfp4".

    Raises NanoengineError for what is neither a dtype nor part=dtype.
    """
    if isinstance(spec, dict):
        return dict(spec)
    dtypes = {}
    for item in spec.split(","):
        part, is_part, dtype = item.strip().rpartition("=")
        part = part.strip() if is_part else "default"
        if part in dtypes:
            raise NanoengineError(f"The weight dtype {spec!r} names {part} twice.")
        dtypes[part] = canonical_dtype(dtype.strip(), "weight dtype")
    return dtypes
