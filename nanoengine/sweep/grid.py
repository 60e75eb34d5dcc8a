"""Which cells a sweep visits, and in which order."""

import random
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nanoengine.errors import NanoengineError


class Cell(NamedTuple):
    """`batch` requests decoded together, each attending to `history` tokens."""

    batch: int
    history: int

    def __str__(self) -> str:
        return f"{self.batch} x {self.history}"


class Visit(NamedTuple):
    """The `visit`-th time (from 0) that a sweep measures `cell`."""

    cell: Cell
    visit: int


def _up_to(tokens: int, batches: Iterable[int], histories: Iterable[int]) -> list[Cell]:
    return [Cell(b, t) for b in batches for t in histories if b * t <= tokens]


PRESETS = {
    # What a laptop can redo of a batch x history sweep: up to 32,768 tokens of KV, as much as one step of its weights.
    "laptop": _up_to(32_768, (1, 4, 16), (256, 512, 1024, 2048, 4096, 8192)),
    # The published context sweep's design: batch 1, histories that span its averages, 768 and 3,584, and beyond.
    "context": [Cell(1, history) for history in (256, 768, 1536, 2560, 3584, 4608, 6144, 7936)],
    # Enough for a line in a notebook.
    "quick": [Cell(1, 256), Cell(1, 2048), Cell(1, 6144), Cell(4, 256), Cell(4, 2048), Cell(16, 256), Cell(16, 1024)],
}


def as_cells(grid: str | Iterable[tuple[int, int]]) -> list[Cell]:
    """Cells of a preset ("laptop", "context", "quick"), of text such as "1x256,4x1024", or of (batch, history) pairs.

    Raises NanoengineError for anything else, for sizes below 1 and for a cell named twice.
    """
    if isinstance(grid, str):
        cells = PRESETS[grid] if grid in PRESETS else [_parse(part) for part in grid.split(",")]
    else:
        try:
            cells = [Cell(int(batch), int(history)) for batch, history in grid]
        except (TypeError, ValueError):
            raise NanoengineError(
                "A grid is a preset's name or a list of (batch, history) pairs of whole numbers."
            ) from None
    if not cells:
        raise NanoengineError("The grid has no cells; name a preset or give (batch, history) pairs.")
    for cell in cells:
        if min(cell) < 1:
            raise NanoengineError(f"The cell {cell} is no decode step; batch and history must be at least 1.")
        if cells.count(cell) > 1:
            raise NanoengineError(f"The cell {cell} is in the grid twice; raise the number of visits instead.")
    return list(cells)


def _parse(text: str) -> Cell:
    match = re.fullmatch(r"\s*(\d+)\s*[xX]\s*(\d+)\s*", text)
    if not match:
        raise NanoengineError(
            f"{text!r} is neither a preset ({', '.join(PRESETS)}) nor a cell; write cells as batch x history, "
            "for example 1x256,4x1024."
        )
    return Cell(int(match[1]), int(match[2]))


def scale_down(
    cells: list[Cell], steps: int, max_context: int, kv_capacity_tokens: int, kv_block_tokens: int = 1
) -> tuple[list[Cell], str]:
    """The cells that this engine can hold, and one sentence on those left out ("" when none is).

    steps: decode steps of one visit, by which every history grows; kv_block_tokens: what KV memory is handed out in.
    A history that reaches the model's context is kept: its visit starts a few tokens earlier.
    Raises NanoengineError when no cell is left.
    """

    def fits(cell: Cell) -> bool:
        tokens = min(cell.history + steps, max_context)
        per_sequence = -(-tokens // kv_block_tokens) * kv_block_tokens
        return cell.history <= max_context and cell.batch * per_sequence <= kv_capacity_tokens

    kept = [cell for cell in cells if fits(cell)]
    left_out = [cell for cell in cells if cell not in kept]
    reason = f"the model's context of {max_context} tokens or the {kv_capacity_tokens} tokens of KV that memory holds"
    if not kept:
        raise NanoengineError(f"No cell fits {reason}; give a grid of smaller cells.")
    if not left_out:
        return kept, ""
    names = ", ".join(map(str, left_out))
    return kept, f"Scaled down: left out {names} (batch x history), which exceed {reason}."


def visit_order(cells: list[Cell], visits: int, seed: int) -> Iterator[Visit]:
    """Every cell once in each of `visits` rounds, each round shuffled anew, and the very first cell again at the end.

    Interleaved, so that drift of the machine spreads over all cells and cannot pass for KV; the last visit, beside
    the first, shows how large the drift was.
    """
    if visits < 1:
        raise NanoengineError(f"A sweep needs at least 1 visit of each cell, not {visits}.")
    shuffle = random.Random(seed)
    first = None
    for visit in range(visits):
        for cell in shuffle.sample(cells, len(cells)):
            first = first or cell
            yield Visit(cell, visit)
    yield Visit(first, visits)
