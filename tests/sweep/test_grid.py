import pytest

from nanoengine.errors import NanoengineError
from nanoengine.sweep.grid import PRESETS, Cell, as_cells, scale_down, visit_order


def test_laptop_preset_is_the_grid_of_three_batches_up_to_32768_tokens():
    cells = as_cells("laptop")
    assert {cell.batch for cell in cells} == {1, 4, 16}
    assert {cell.history for cell in cells} == {256, 512, 1024, 2048, 4096, 8192}
    assert max(cell.batch * cell.history for cell in cells) == 32_768
    assert Cell(16, 2048) in cells and Cell(16, 4096) not in cells


def test_context_preset_varies_history_alone_and_holds_the_essays_two_averages():
    cells = as_cells("context")
    assert {cell.batch for cell in cells} == {1}
    assert {768, 3584} <= {cell.history for cell in cells}
    assert len(cells) >= 6


def test_grids_in_words_and_pairs():
    assert as_cells("1x256, 4X1024") == [Cell(1, 256), Cell(4, 1024)]
    assert as_cells([(2, 8)]) == [Cell(2, 8)]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("desktop", "neither a preset"),
        ("1x", "neither a preset"),
        ("0x256", "at least 1"),
        ([(1, -5)], "at least 1"),
        ([], "no cells"),
        ([(1, 256), (1, 256)], "twice"),
        ([1, 2], "pairs"),
        ([("a", 2)], "pairs"),
    ],
)
def test_bad_grids_are_refused_in_one_sentence(grid, message):
    with pytest.raises(NanoengineError, match=message):
        as_cells(grid)


def test_cells_too_large_for_memory_or_context_are_left_out_and_named():
    cells = [Cell(1, 256), Cell(4, 1000), Cell(1, 9000)]
    kept, sentence = scale_down(cells, steps=5, max_context=8192, kv_capacity_tokens=4000)
    assert kept == [Cell(1, 256)]
    assert "4 x 1000" in sentence and "1 x 9000" in sentence and "4000 tokens" in sentence
    assert scale_down(cells[:1], 5, 8192, 4000) == (cells[:1], "")


def test_memory_is_counted_in_whole_blocks_and_with_the_growth_of_a_visit():
    def fits(kv_capacity_tokens, block):
        return Cell(4, 100) in scale_down([Cell(4, 100), Cell(1, 1)], 5, 8192, kv_capacity_tokens, block)[0]

    assert fits(420, 1) and not fits(419, 1)
    assert fits(448, 16) and not fits(447, 16)


def test_a_history_as_long_as_the_context_is_kept():
    assert scale_down([Cell(1, 8192)], 5, 8192, 10_000) == ([Cell(1, 8192)], "")


def test_no_cell_left_is_an_error():
    with pytest.raises(NanoengineError, match="No cell fits"):
        scale_down([Cell(1, 256)], 5, 128, 10_000)


def test_each_round_visits_every_cell_in_its_own_order_and_the_first_cell_comes_last_again():
    cells = PRESETS["laptop"]
    order = list(visit_order(cells, visits=3, seed=0))
    rounds = [order[i * len(cells) : (i + 1) * len(cells)] for i in range(3)]
    for number, visits in enumerate(rounds):
        assert sorted(visit.cell for visit in visits) == sorted(cells)
        assert {visit.visit for visit in visits} == {number}
    assert len({tuple(visit.cell for visit in visits) for visits in rounds}) == 3
    assert [visit.cell for visit in rounds[0]] != cells, "shuffled"
    assert order[-1].cell == order[0].cell and order[-1].visit == 3
    assert len(set(order)) == len(order) == 3 * len(cells) + 1


def test_order_follows_from_the_seed():
    def order(seed):
        return list(visit_order(PRESETS["laptop"], 2, seed))

    assert order(1) == order(1) != order(2)


def test_zero_visits_are_refused():
    with pytest.raises(NanoengineError, match="at least 1 visit"):
        list(visit_order(PRESETS["quick"], 0, 0))
