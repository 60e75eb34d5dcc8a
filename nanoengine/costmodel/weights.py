"""Every weight of a model, matrix by matrix."""

from typing import NamedTuple


class Matrix(NamedTuple):
    """`count` matrices of `rows` x `cols`.

    part: which weight dtype applies. read: whether a decode step reads it. expert: whether it belongs to one expert of
    many, so that a step reads only as many copies as its tokens choose.
    """

    name: str
    part: str
    count: int
    rows: int
    cols: int
    read: bool = True
    expert: bool = False


PARTS = ("embedding", "attention", "mlp", "experts", "router", "norms", "head")


def matrices_of(model) -> list[Matrix]:
    """The matrices of a ModelSpec, in the order in which a token meets them. Vectors count as one row, or as two."""
    layers, hidden, block = model.layers, model.hidden, model.block
    embedding = "embedding" + (" (also the head)" if model.tied else "")
    rows = [Matrix(embedding, "head" if model.tied else "embedding", 1, model.vocab, hidden, model.tied)]
    rows += _norm("attention norm", layers, hidden, block)
    rows += _latent_attention(model) if model.latent else _attention(model)
    if block.norms == 4:
        rows += _norm("post-attention norm", layers, hidden, block)
    if block.norms >= 2:
        rows += _norm("MLP norm", layers, hidden, block)
    dense = layers if model.experts is None else model.experts.dense_layers
    rows += _mlp("", "mlp", dense, hidden, model.intermediate, block)
    if model.experts:
        rows += _experts(model)
    if block.norms == 4:
        rows += _norm("post-MLP norm", layers, hidden, block)
    rows += _norm("final norm", 1, hidden, block)
    if not model.tied:
        rows.append(Matrix("head", "head", 1, model.vocab, hidden))
    if block.head_bias:
        rows.append(Matrix("head bias", "norms", 1, 1, model.vocab))
    return [row for row in rows if row.count]


def _norm(name: str, count: int, size: int, block) -> list[Matrix]:
    return [Matrix(name, "norms", count, 2 if block.norm_bias else 1, size)]


def _attention(model) -> list[Matrix]:
    layers, hidden = model.layers, model.hidden
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    rows = [
        Matrix("q projection", "attention", layers, q, hidden),
        Matrix("k projection", "attention", layers, kv, hidden),
        Matrix("v projection", "attention", layers, kv, hidden),
    ]
    if model.qkv_bias:
        rows.append(Matrix("q, k, v biases", "norms", layers, 1, q + 2 * kv))
    if model.qk_norm:
        rows.append(Matrix("q, k norms", "norms", layers, 2, model.head_dim))
    if model.block.sinks:
        rows.append(Matrix("attention sinks", "norms", layers, 1, model.heads))
    rows.append(Matrix("output projection", "attention", layers, hidden, q))
    if model.block.output_bias:
        rows.append(Matrix("output bias", "norms", layers, 1, hidden))
    return rows


def _latent_attention(model) -> list[Matrix]:
    layers, hidden, heads, latent = model.layers, model.hidden, model.heads, model.latent
    q = heads * (latent.nope_dim + latent.rope_dim)
    if latent.q_rank:
        rows = [
            Matrix("q down projection", "attention", layers, latent.q_rank, hidden),
            Matrix("q latent norm", "norms", layers, 1, latent.q_rank),
            Matrix("q up projection", "attention", layers, q, latent.q_rank),
        ]
    else:
        rows = [Matrix("q projection", "attention", layers, q, hidden)]
    return [
        *rows,
        Matrix("KV down projection", "attention", layers, latent.values_per_token, hidden),
        Matrix("KV latent norm", "norms", layers, 1, latent.kv_rank),
        Matrix("KV up projection", "attention", layers, heads * (latent.nope_dim + latent.value_dim), latent.kv_rank),
        Matrix("output projection", "attention", layers, hidden, heads * latent.value_dim),
    ]


def _mlp(prefix: str, part: str, count: int, hidden: int, width: int, block) -> list[Matrix]:
    expert = part == "experts"
    rows = [Matrix(f"{prefix}gate projection", part, count, width, hidden, expert=expert)] if block.gated else []
    rows += [
        Matrix(f"{prefix}up projection", part, count, width, hidden, expert=expert),
        Matrix(f"{prefix}down projection", part, count, hidden, width, expert=expert),
    ]
    if block.mlp_bias:
        biases = (2 if block.gated else 1) * width + hidden
        rows.append(Matrix(f"{prefix}MLP biases", "norms", count, 1, biases, expert=expert))
    return rows


def _experts(model) -> list[Matrix]:
    experts, layers = model.experts, model.layers - model.experts.dense_layers
    rows = [Matrix("router", "router", layers, experts.count, model.hidden)]
    if model.block.router_bias:
        rows.append(Matrix("router bias", "norms", layers, 1, experts.count))
    rows += _mlp("expert ", "experts", layers * experts.count, model.hidden, experts.intermediate, model.block)
    rows += _mlp("shared expert ", "mlp", layers * experts.shared, model.hidden, experts.intermediate, model.block)
    return rows
