"""Who owns which block of the KV cache, and whose KV can be shared. Pure Python: the simulator runs it too."""

from array import array
from collections import OrderedDict, deque
from hashlib import sha256

from nanoengine.engine.sequence import Sequence


class BlockManager:
    """Hands out fixed-size blocks of KV slots, takes them back, and finds those whose KV a new sequence can share.

    A sequence's `block_table[i]` names the block that holds its tokens i*block_size to (i+1)*block_size - 1.
    A block is in one of three states, and free + cached + used = num_blocks at all times:

        used    in the block table of one sequence, or of several that share it
        cached  in no table, but its KV is kept and found by its hash, until the room is needed
        free    in no table, and what it holds is of no worth

    Every call costs O(1) per block that it looks at or moves. Without `prefix_caching` no block is ever cached or
    shared; a simulator whose tokens are made up wants it so.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool = False):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.num_evictions = 0
        self._num_owners = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._free = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()  # the block to evict first comes first

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    @property
    def num_cached_blocks(self) -> int:
        return len(self._cached)

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.num_available_blocks

    @property
    def num_available_blocks(self) -> int:
        """Blocks that can be handed out: free ones, and cached ones that give up their KV for it."""
        return len(self._free) + len(self._cached)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens occupy, the last one possibly in part."""
        return -(-num_tokens // self.block_size)

    def can_hold(self, seq: Sequence, num_tokens: int) -> bool:
        """Whether `seq` can be given room for `num_tokens` tokens in all."""
        return self.blocks_for(num_tokens) - len(seq.block_table) <= self.num_available_blocks

    def reserve(self, seq: Sequence, num_tokens: int) -> None:
        """Extend the block table of `seq` to hold `num_tokens` tokens in all; ask `can_hold` first.

        In decode this takes a block exactly when the length has just passed a block boundary, that is when length
        mod block_size is 1, and not when it is 0. The newest token is counted in the length, but its KV is written
        by the step that is now being scheduled. With block_size 16:

            length   slot of the newest token   blocks needed
            15       14                         1
            16       15, the last of block 0    1    full, yet nothing to do: the next token may never come
            17       16, the first of block 1   2    this step needs the second block
            18       17                         2
        """
        for _ in range(self.blocks_for(num_tokens) - len(seq.block_table)):
            block = self._free.popleft() if self._free else self._evict()
            self._num_owners[block] = 1
            seq.block_table.append(block)

    def cached_prefix(self, seq: Sequence) -> list[int]:
        """Blocks that already hold the KV of the first tokens of `seq`, as many as match without a gap.

        The last token is never among theirs, though its KV may be there: only computing it gives the logits that
        the next token is drawn from.
        """
        blocks = []
        if self.prefix_caching and seq.shareable:
            for i in range((len(seq) - 1) // self.block_size):
                block = self._block_of.get(self._hash(seq, i))
                if block is None:
                    break
                blocks.append(block)
        return blocks

    def can_admit(self, seq: Sequence, prefix: list[int]) -> bool:
        """Whether `seq` can be given room for all its tokens if it starts with the blocks of `prefix`."""
        idle = sum(self._num_owners[block] == 0 for block in prefix)  # available now, but not beside the prefix
        return self.blocks_for(len(seq)) - len(prefix) <= self.num_available_blocks - idle

    def admit(self, seq: Sequence, prefix: list[int]) -> None:
        """Give `seq`, which has no blocks, those of `prefix` and room for the rest of its tokens."""
        for block in prefix:
            if self._num_owners[block] == 0:
                del self._cached[block]
            self._num_owners[block] += 1
        seq.block_table = list(prefix)
        seq.num_computed_tokens = len(prefix) * self.block_size
        self.reserve(seq, len(seq))

    def share(self, seq: Sequence, num_tokens_before: int) -> None:
        """Let others find the blocks that `seq` filled since it had computed `num_tokens_before` tokens.

        To be called after the step that wrote them ran. Earlier, a second prompt could be sent to blocks without KV.
        """
        if not (self.prefix_caching and seq.shareable):
            return
        for i in range(num_tokens_before // self.block_size, seq.num_computed_tokens // self.block_size):
            block, content = seq.block_table[i], self._hash(seq, i)
            # Two equal prompts of one step both computed it: one of the two blocks is enough.
            if content not in self._block_of:
                self._block_of[content] = block
                self._hash_of[block] = content

    def release(self, seq: Sequence) -> None:
        """Take back the blocks of `seq`; those that can be found by their hash stay cached, the rest is free."""
        # The last block first: a cached block is of use only while all before it are, so the first is evicted last.
        for block in reversed(seq.block_table):
            self._num_owners[block] -= 1
            if self._num_owners[block] == 0:
                if self._hash_of[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None
        seq.block_table = []
        seq.num_computed_tokens = 0

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        del self._block_of[self._hash_of[block]]
        self._hash_of[block] = None
        self.num_evictions += 1
        return block

    def _hash(self, seq: Sequence, i: int) -> bytes:
        """What names the KV of block i of `seq`: its tokens and, through the hash before, all tokens before them.

        SHA-256, because two contents under one name would hand a request somebody else's KV.
        """
        while len(seq.block_hashes) <= i:
            start = len(seq.block_hashes) * self.block_size
            tokens = array("q", seq.token_ids[start : start + self.block_size])
            parent = seq.block_hashes[-1] if seq.block_hashes else b""
            seq.block_hashes.append(sha256(parent + tokens.tobytes()).digest())
        return seq.block_hashes[i]
