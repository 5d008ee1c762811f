"""Draws cases of attention, see drawn_float.py."""
import numpy as np
from drawn_float import f32, flag, ints, n, one_of

DRAWN = {}


def drawn(name):
    def register(draw):
        DRAWN[name] = draw
        return draw
    return register


def mask_of(r, batch, queries, keys):
    """A mask of keys in one of its forms; the first key of each sample is shown."""
    form = n(r, 0, 4)
    if form == 0:
        return None
    if form == 1:
        return ints(r, 1, keys + 1, batch)
    if form == 2:
        start = ints(r, 0, keys, batch)
        return np.concatenate([start + 1 + ints(r, 0, keys, batch), start]).astype(np.int32)
    mask = ints(r, 0, 2, *([batch, keys] if form == 3 else [batch, queries, keys]))
    mask[..., 0] = 1
    return mask


@drawn("Attention")
def attention(r):
    batch, seq, heads, size, past = n(r, 1, 3), n(r, 1, 4), n(r, 1, 3), n(r, 1, 4), one_of(r, 0, 0, n(r, 1, 3))
    hidden, width = heads * size, n(r, 1, 6)
    values = hidden if past or flag(r) else heads * n(r, 1, 4)
    attrs = {"num_heads": heads}
    if values != hidden or flag(r):
        attrs["qkv_hidden_sizes"] = [hidden, hidden, values]
    if flag(r):
        attrs["unidirectional"] = 1
    if flag(r):
        attrs["scale"] = 0.3
    if flag(r):
        attrs["mask_filter_value"] = -50.0
    columns = 2 * hidden + values
    inputs = [
        f32(r, batch, seq, width), f32(r, width, columns), f32(r, columns),
        mask_of(r, batch, seq, seq + past),
        f32(r, 2, batch, heads, past, size) if past else None,
        f32(r, one_of(r, 1, batch), one_of(r, 1, heads), seq, seq) if flag(r) and not past else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    results = [True, True] if past or (values == hidden and flag(r)) else [True]
    return {"inputs": inputs, "attrs": attrs, "results": results}


@drawn("MultiHeadAttention")
def multi_head(r):
    batch, seq, heads, size = n(r, 1, 3), n(r, 1, 4), n(r, 1, 3), n(r, 1, 4)
    hidden = heads * size
    form = one_of(r, "apart", "apart", "apart", "cross")
    past = one_of(r, 0, n(r, 1, 3)) if form == "apart" else 0
    keys = n(r, 1, 4)
    attrs = {"num_heads": heads}
    if flag(r):
        attrs["scale"] = 0.4
    causal = flag(r) and form == "apart" and keys == seq
    if causal:
        attrs["unidirectional"] = 1
    value = hidden if past or form != "apart" or flag(r) else heads * n(r, 1, 4)
    if form == "cross":
        qkv = [f32(r, batch, seq, hidden), f32(r, batch, heads, keys, size), f32(r, batch, heads, keys, size)]
    else:
        qkv = [f32(r, batch, seq, hidden), f32(r, batch, keys, hidden), f32(r, batch, keys, value)]
    total = keys + past
    bias = f32(r, 2 * hidden + value) if form == "apart" and flag(r) else None
    mask = mask_of(r, batch, seq, total) if flag(r) else None
    if mask is not None and mask.ndim == 1 and mask.shape[0] == 2 * batch:
        mask = None
    extra = f32(r, one_of(r, 1, batch), one_of(r, 1, heads), seq, total) if flag(r) else None
    caches = [f32(r, batch, heads, past, size), f32(r, batch, heads, past, size)] if past else [None, None]
    inputs = [*qkv, bias, mask, extra, *caches]
    while inputs[-1] is None:
        inputs.pop()
    results = [True, True, True] if past or (form == "apart" and value == hidden and flag(r)) else [True]
    return {"inputs": inputs, "attrs": attrs, "results": results}


def cache(r, rows, half):
    angle = r.uniform(0, 6, (rows, half))
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


@drawn("RotaryEmbedding")
def rotary(r):
    batch, seq, heads, half = n(r, 1, 3), n(r, 1, 4), n(r, 1, 3), n(r, 1, 4)
    rows = seq + n(r, 0, 4)
    attrs, size = {"interleaved": int(flag(r))}, 2 * half
    if flag(r):
        size += 2 * n(r, 1, 2)
        attrs |= {"rotary_embedding_dim": 2 * half, "num_heads": heads}
    x = f32(r, batch, heads, seq, size) if flag(r) else f32(r, batch, seq, heads * size)
    if flag(r):
        ids = ints(r, 0, rows, batch, seq, dtype=np.int64)
    else:
        ids = ints(r, 0, rows - seq + 1, 1, dtype=np.int64)
    return {"inputs": [x, ids, *cache(r, rows, half)], "attrs": attrs}


@drawn("GroupQueryAttention")
def group_query(r):
    batch, shared, group, half = n(r, 1, 3), n(r, 1, 2), n(r, 1, 3), one_of(r, 8, 16)
    heads, size = shared * group, 2 * half
    prompt = flag(r)
    seq = n(r, 1, 4) if prompt or batch == 1 else 1
    stored = 0 if prompt and flag(r) else n(r, 1, 5)
    if prompt:
        total, lengths = seq, [seq] * batch
        stored = max(stored, seq) if stored else 0
    else:
        grows = flag(r)
        stored += 0 if grows else seq
        total = stored + seq if grows else int(r.integers(seq + 1, stored + 1))
        lengths = [total] + [int(r.integers(seq, total + 1)) for _ in range(batch - 1)]
    attrs = {"num_heads": heads, "kv_num_heads": shared}
    if flag(r):
        attrs["scale"] = 0.4
    if flag(r):
        attrs["softcap"] = 2.0
    if flag(r):
        attrs["local_window_size"] = n(r, 1, 3)
    if one_of(r, 0, 0, 1):
        attrs["smooth_softmax"] = 1
    if flag(r):
        qkv = [f32(r, batch, seq, (heads + 2 * shared) * size), None, None]
    else:
        qkv = [f32(r, batch, seq, heads * size), f32(r, batch, seq, shared * size), f32(r, batch, seq, shared * size)]
    past = [f32(r, batch, shared, stored, size) for _ in range(2)] if stored else [None, None]
    inputs = [*qkv, *past, np.array(lengths, np.int32) - 1, np.array([total], np.int32)]
    if flag(r):
        attrs |= {"do_rotary": 1, "rotary_interleaved": int(flag(r))}
        inputs += cache(r, max(total, stored + seq) + n(r, 0, 3), half)
    if one_of(r, 0, 0, 1) and "smooth_softmax" not in attrs:
        while len(inputs) < 10:
            inputs.append(None)
        inputs.append(f32(r, one_of(r, 1, batch), one_of(r, 1, heads), seq, total))
    return {"inputs": inputs, "attrs": attrs, "stored": one_of(r, (6,), ()), "results": [True, True, True]}


@drawn("DecoderMaskedMultiHeadAttention")
def decoder(r):
    batch, heads, size, past, cross = n(r, 1, 3), n(r, 1, 3), n(r, 1, 4), n(r, 1, 4), flag(r)
    hidden = heads * size
    inputs = [None] * 11
    if cross:
        keys = past
        inputs[:3] = [f32(r, batch, 1, hidden), f32(r, batch, heads, keys, size), f32(r, batch, heads, keys, size)]
    else:
        keys = past + 1
        inputs[:3] = [f32(r, batch, 1, hidden) for _ in range(3)]
        inputs[5:7] = [f32(r, batch, heads, past + n(r, 1, 3), size)] * 2
        inputs[6] = f32(r, *inputs[5].shape)
        inputs[7] = np.array([past], np.int32)
    if flag(r):
        inputs[3] = ints(r, 0, 2, batch, keys)
        inputs[3][:, 0] = 1
    if not cross and flag(r):
        inputs[4] = f32(r, one_of(r, 1, batch), one_of(r, 1, heads), 1, keys)
    if not cross and flag(r):
        inputs[10] = f32(r, 3 * hidden)
    while inputs[-1] is None:
        inputs.pop()
    attrs = {"num_heads": heads} | ({} if cross else {"past_present_share_buffer": 1})
    results = [True] if cross else [True, True, True]
    return {"inputs": inputs, "attrs": attrs, "results": results, "stored": one_of(r, (), (7,))}
