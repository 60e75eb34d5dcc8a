"""Who owns which block of the KV cache. Pure Python: the simulator runs it too."""

from collections import deque

from nanoengine.engine.sequence import Sequence


class BlockManager:
    """Hands out fixed-size blocks of KV slots and takes them back.

    A sequence's `block_table[i]` names the block that holds its tokens i*block_size to (i+1)*block_size - 1.
    Every call costs O(1) per block it moves.
    """

    def __init__(self, num_blocks: int, block_size: int):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = deque(range(num_blocks))

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens occupy, the last one possibly in part."""
        return -(-num_tokens // self.block_size)

    def can_hold(self, seq: Sequence, num_tokens: int) -> bool:
        """Whether `seq` can be given room for `num_tokens` tokens in all."""
        return self.blocks_for(num_tokens) - len(seq.block_table) <= len(self._free)

    def reserve(self, seq: Sequence, num_tokens: int) -> None:
        """Extend the block table of `seq` to hold `num_tokens` tokens in all; ask `can_hold` first.

        In decode this takes a block only when the length has just passed a block boundary: with block_size 16 the
        17th token needs a second block, the 18th to 32nd do not. The 16th still fits in the first.
        """
        for _ in range(self.blocks_for(num_tokens) - len(seq.block_table)):
            seq.block_table.append(self._free.popleft())

    def release(self, seq: Sequence) -> None:
        """Take back every block of `seq`, whose KV is then gone."""
        self._free.extend(seq.block_table)
        seq.block_table.clear()
        seq.num_computed_tokens = 0
