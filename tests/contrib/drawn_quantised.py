"""Draws cases of operators on quantised tensors, see drawn_float.py."""
import numpy as np
from drawn_attention import mask_of
from drawn_float import dims, f32, flag, ints, n, one_of

DRAWN = {}


def drawn(name):
    def register(draw):
        DRAWN[name] = draw
        return draw
    return register


def low_of(dtype):
    return -128 if dtype == np.int8 else 0


def byte(r):
    return one_of(r, np.uint8, np.int8)


def quantised(r, dtype, *shape):
    low = low_of(dtype)
    return r.integers(low, low + 256, shape).astype(dtype)


def scale(r, low=0.01, high=0.1):
    return np.array(r.uniform(low, high), np.float32)


def zero(r, dtype):
    low = low_of(dtype)
    return np.array(r.integers(low + 90, low + 160), dtype)


def without_end(inputs):
    while inputs[-1] is None:
        inputs.pop()
    return inputs


def binary(r):
    dtype = byte(r)
    a = [n(r, 1, 4) for _ in range(n(r, 1, 3))] + [n(r, 1, 40)]
    b = one_of(r, a, a[-1:], [1], [1] * len(a), a[:-1] + [1])
    left, right = (a, b) if flag(r) else (b, a)
    inputs = [quantised(r, dtype, *left), scale(r), zero(r, dtype), quantised(r, dtype, *right), scale(r), zero(r, dtype)]
    return inputs + [scale(r, 0.05, 0.2), zero(r, dtype)]


@drawn("QLinearAdd")
def add(r):
    return {"inputs": binary(r)}


@drawn("QLinearMul")
def mul(r):
    return {"inputs": binary(r)}


def unary(r, y_scale, y_zero):
    dtype = byte(r)
    x = quantised(r, dtype, *dims(r, 1, 3), n(r, 1, 20))
    return [x, scale(r), zero(r, dtype) if flag(r) else None, y_scale, y_zero(dtype)]


@drawn("QLinearSigmoid")
def sigmoid(r):
    return {"inputs": unary(r, np.array(1 / 256, np.float32), lambda dtype: np.array(low_of(dtype), dtype))}


@drawn("QLinearLeakyRelu")
def leaky_relu(r):
    return {"inputs": unary(r, scale(r), lambda dtype: zero(r, dtype)), "attrs": {"alpha": one_of(r, 0.01, 0.2)}}


@drawn("QLinearSoftmax")
def softmax(r):
    y_scale = np.array(one_of(r, 1 / 256, 1 / 200, 1 / 100), np.float32)
    inputs = unary(r, y_scale, lambda dtype: np.array(low_of(dtype), dtype))
    # Of a single element ONNX Runtime's numbers overflow.
    rank, opset = inputs[0].ndim, one_of(r, 12, 13)
    axis = int(r.integers(-rank, rank))
    x = inputs[0]
    inputs[0] = np.concatenate([x, quantised(r, x.dtype.type, *x.shape)], axis)
    return {"inputs": inputs, "attrs": {"opset": opset, "axis": axis}}


@drawn("QLinearWhere")
def where(r):
    dtype = byte(r)
    d = dims(r, 1, 3)
    inputs = [r.integers(0, 2, one_of(r, d, d[-1:])).astype(bool)]
    for shape in (d, one_of(r, d, d[-1:])):
        inputs += [quantised(r, dtype, *shape), scale(r), zero(r, dtype)]
    return {"inputs": inputs + [scale(r), zero(r, dtype)]}


@drawn("QLinearConcat")
def concat(r):
    dtype = byte(r)
    d = dims(r, 1, 3)
    axis = int(r.integers(0, len(d)))
    inputs = [scale(r), zero(r, dtype)]
    for _ in range(n(r, 1, 3)):
        shape = [*d]
        shape[axis] = n(r)
        inputs += [quantised(r, dtype, *shape), inputs[0] if flag(r) else scale(r), zero(r, dtype)]
    return {"inputs": inputs, "attrs": {"axis": one_of(r, axis, axis - len(d))}}


@drawn("QLinearAveragePool")
def average_pool(r):
    dtype, last = byte(r), flag(r)
    kernel = [n(r, 1, 3), n(r, 1, 3)]
    spatial = [n(r, 4, 7), n(r, 4, 7)]
    x = [n(r, 1, 2), *spatial, n(r)] if last else [n(r, 1, 2), n(r), *spatial]
    attrs = {"kernel_shape": kernel, "strides": [n(r, 1, 2), n(r, 1, 2)], "channels_last": int(last),
             "pads": [n(r, 0, k - 1) for k in kernel] * 2, "count_include_pad": int(flag(r))}
    inputs = [quantised(r, dtype, *x), scale(r), zero(r, dtype), scale(r), zero(r, dtype)]
    return {"inputs": inputs, "attrs": attrs}


@drawn("QLinearGlobalAveragePool")
def global_average_pool(r):
    dtype, last = byte(r), flag(r)
    x = [n(r, 1, 3), n(r), n(r), n(r)]
    inputs = [quantised(r, dtype, *x), scale(r), zero(r, dtype), scale(r), zero(r, dtype)]
    return {"inputs": inputs, "attrs": {"channels_last": int(last)}}


def pair(r):
    """Types of a product's operands."""
    return one_of(r, (np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8))


def columns_of(r, dtype, count):
    """Scales and zero points of a weight, one or one for each column."""
    if flag(r):
        return scale(r), zero(r, dtype)
    return r.uniform(0.01, 0.1, count).astype(np.float32), (ints(r, 100, 150, count) + low_of(dtype)).astype(dtype)


@drawn("QGemm")
def gemm(r):
    left, right = pair(r)
    m, k, cols, ta, tb = n(r), n(r, 1, 9), n(r), flag(r), flag(r)
    b_scale, b_zero = columns_of(r, right, cols)
    inputs = [quantised(r, left, *([k, m] if ta else [m, k])), scale(r), zero(r, left),
              quantised(r, right, *([cols, k] if tb else [k, cols])), b_scale, b_zero,
              ints(r, -2000, 2000, *one_of(r, [cols], [m, cols], [1, cols])) if flag(r) else None]
    if flag(r):
        inputs += [scale(r, 0.2, 0.9), zero(r, left)]
    attrs = {"transA": int(ta), "transB": int(tb), "alpha": one_of(r, 1.0, 0.5)}
    return {"inputs": without_end(inputs), "attrs": attrs}


@drawn("DynamicQuantizeMatMul")
def dynamic_matmul(r):
    right = byte(r)
    k, cols = n(r, 1, 9), n(r)
    b_scale, b_zero = columns_of(r, right, cols)
    inputs = [f32(r, *dims(r, 1, 2), k), quantised(r, right, k, cols), b_scale, b_zero if flag(r) else None,
              f32(r, cols) if flag(r) else None]
    return {"inputs": without_end(inputs)}


@drawn("MatMulIntegerToFloat")
def matmul_to_float(r):
    left, right = pair(r)
    k, cols = n(r, 1, 9), n(r)
    b_scale, b_zero = columns_of(r, right, cols)
    inputs = [quantised(r, left, *dims(r, 1, 2), k), quantised(r, right, k, cols), scale(r), b_scale,
              zero(r, left) if flag(r) else None, b_zero if flag(r) else None, f32(r, cols) if flag(r) else None]
    return {"inputs": without_end(inputs)}


@drawn("MatMulInteger16")
def integer16(r):
    k = n(r, 1, 9)
    return {"inputs": [ints(r, -9999, 9999, *dims(r, 1, 2), k, dtype=np.int16), ints(r, -9999, 9999, k, n(r), dtype=np.int16)]}


@drawn("QuantizeLinear")
def quantize(r):
    dtype = one_of(r, np.uint8, np.int8, np.uint16, np.int16)
    d = dims(r, 1, 3)
    if flag(r):
        axis = int(r.integers(0, len(d)))
        scales, zeros = r.uniform(0.01, 0.1, d[axis]).astype(np.float32), ints(r, 0, 100, d[axis]).astype(dtype)
        return {"inputs": [f32(r, *d), scales, zeros], "attrs": {"axis": axis}}
    return {"inputs": [f32(r, *d), scale(r), np.array(r.integers(0, 100), dtype)]}


@drawn("DequantizeLinear")
def dequantize(r):
    dtype = one_of(r, np.uint8, np.int8, np.uint16, np.int16)
    d = dims(r, 1, 3)
    x = ints(r, 0, 120, *d).astype(dtype)
    if flag(r):
        axis = int(r.integers(0, len(d)))
        scales, zeros = r.uniform(0.01, 0.1, d[axis]).astype(np.float32), ints(r, 0, 100, d[axis]).astype(dtype)
        return {"inputs": [x, scales, zeros], "attrs": {"axis": axis}}
    return {"inputs": [x, scale(r)] + ([np.array(r.integers(0, 100), dtype)] if flag(r) else [])}


@drawn("QLinearConv")
def conv(r):
    left, right = pair(r)
    last, group = flag(r), one_of(r, 1, 1, 2)
    channels, filters = group * n(r, 1, 3), group * n(r, 1, 3)
    kernel, spatial = [n(r, 1, 3), n(r, 1, 3)], [n(r, 4, 6), n(r, 4, 6)]
    x = [n(r, 1, 2), *spatial, channels] if last else [n(r, 1, 2), channels, *spatial]
    w_scale = scale(r) if flag(r) else r.uniform(0.01, 0.1, filters).astype(np.float32)
    w_zero = np.zeros(w_scale.shape, np.int8) if right == np.int8 else np.full(w_scale.shape, 120, np.uint8)
    inputs = [quantised(r, left, *x), scale(r), zero(r, left), quantised(r, right, filters, channels // group, *kernel),
              w_scale, w_zero, scale(r, 0.3, 0.9), zero(r, left), ints(r, -900, 900, filters) if flag(r) else None]
    attrs = {"channels_last": int(last), "group": group, "strides": [n(r, 1, 2), n(r, 1, 2)], "pads": [n(r, 0, 1)] * 4,
             "kernel_shape": kernel}
    return {"inputs": without_end(inputs), "attrs": attrs, "stored": (3, 4, 5, 8)}


@drawn("QAttention")
def attention(r):
    right = byte(r)
    batch, seq, heads, size, past = n(r, 1, 2), n(r, 1, 4), n(r, 1, 3), n(r, 1, 4), one_of(r, 0, 0, n(r, 1, 3))
    width, hidden = n(r, 1, 6), heads * size
    w_scale, w_zero = columns_of(r, right, 3 * hidden)
    mask = mask_of(r, batch, seq, seq + past)
    inputs = [quantised(r, np.uint8, batch, seq, width), quantised(r, right, width, 3 * hidden), f32(r, 3 * hidden),
              scale(r, 0.005, 0.02), np.array(w_scale * np.float32(0.2)), mask, zero(r, np.uint8) if flag(r) else None,
              w_zero if flag(r) else None, f32(r, 2, batch, heads, past, size) if past else None]
    if past and inputs[6] is None:
        inputs[6] = zero(r, np.uint8)
    attrs = {"num_heads": heads, "unidirectional": int(flag(r))}
    return {"inputs": without_end(inputs), "attrs": attrs, "results": [True, True] if past else [True]}


@drawn("QEmbedLayerNormalization")
def embed(r):
    dtype = np.uint8 if flag(r) else np.int8
    batch, seq, hidden = n(r, 1, 3), n(r, 1, 4), n(r, 2, 8)
    words, places, segments = n(r, 2, 9), seq + n(r, 0, 3), n(r, 1, 3)
    segmented = flag(r)
    some = lambda x: x if segmented else None
    inputs = [
        ints(r, 0, words, batch, seq), some(ints(r, 0, segments, batch, seq)), quantised(r, dtype, words, hidden),
        quantised(r, dtype, places, hidden), some(quantised(r, dtype, segments, hidden)), quantised(r, dtype, hidden),
        quantised(r, dtype, hidden), ints(r, 0, 2, batch, seq) if flag(r) else None, scale(r), scale(r), some(scale(r)),
        scale(r), scale(r), zero(r, dtype), zero(r, dtype), some(zero(r, dtype)), zero(r, dtype), zero(r, dtype),
    ]
    return {"inputs": inputs, "attrs": {"epsilon": 1e-6}, "results": [True, True]}


@drawn("MatMulNBits")
def matmul_nbits(r):
    bits, block, k, cols = one_of(r, 4, 4, 8, 2), one_of(r, 16, 32), n(r, 1, 70), n(r, 1, 6)
    dtype = one_of(r, np.float32, np.float32, np.float16)
    blocks = -(-k // block)
    inputs = [f32(r, *dims(r, 1, 2), k).astype(dtype), quantised(r, np.uint8, cols, blocks, block * bits // 8),
              (f32(r, cols, blocks) / 8).astype(dtype)]
    form = n(r, 0, 1 if bits == 8 else 2)
    if form:
        row = -(-blocks * bits // 8)
        inputs.append(quantised(r, np.uint8, cols, row) if form == 1 else r.uniform(0, 1 << bits, (cols, blocks)).astype(dtype))
    if flag(r):
        inputs += [None] * (5 - len(inputs)) + [f32(r, cols).astype(dtype)]
    attrs = {"K": k, "N": cols, "bits": bits, "block_size": block}
    return {"inputs": inputs, "attrs": attrs, "stored": (1, 2, 3)}


@drawn("MatMulBnb4")
def matmul_bnb4(r):
    block, k, cols = one_of(r, 16, 32), n(r, 1, 40), n(r, 1, 6)
    inputs = [f32(r, *dims(r, 1, 2), k), quantised(r, np.uint8, -(-k * cols // 2)),
              r.uniform(0.1, 2, -(-k * cols // block)).astype(np.float32)]
    attrs = {"K": k, "N": cols, "block_size": block, "quant_type": n(r, 0, 1)}
    return {"inputs": inputs, "attrs": attrs, "stored": (1, 2)}


@drawn("GatherBlockQuantized")
def gather_block(r):
    bits, block, rows, width = one_of(r, 4, 4, 8), 16, n(r, 2, 6), 16 * n(r, 1, 3)
    middle = one_of(r, [], [n(r, 1, 3)])
    blocks = width // block
    data = quantised(r, np.uint8, rows, *middle, width * bits // 8)
    inputs = [data, ints(r, -rows, rows, *dims(r, 0, 2), dtype=one_of(r, np.int32, np.int64)), f32(r, rows, *middle, blocks)]
    if flag(r):
        inputs.append(quantised(r, np.uint8, rows, *middle, -(-blocks * bits // 8)))
    attrs = {"bits": bits, "block_size": block, "quantize_axis": data.ndim - 1}
    return {"inputs": inputs, "attrs": attrs, "stored": (0, 2, 3)}


@drawn("DynamicQuantizeLSTM")
def lstm(r):
    right = byte(r)
    time, batch, width, hidden = n(r, 1, 4), n(r, 1, 3), n(r, 1, 6), n(r, 1, 4)
    direction = one_of(r, "forward", "reverse", "bidirectional")
    directions = 2 if direction == "bidirectional" else 1

    def quantisation():
        shape = (directions, 4 * hidden) if flag(r) else (directions,)
        scales = r.uniform(0.002, 0.01, shape).astype(np.float32)
        return scales, np.zeros(shape, right) if right == np.int8 else np.full(shape, 120, right)

    (w_scale, w_zero), (r_scale, r_zero) = quantisation(), quantisation()
    some = lambda *shape: f32(r, directions, *shape) / 2 if flag(r) else None
    inputs = [f32(r, time, batch, width), quantised(r, right, directions, width, 4 * hidden),
              quantised(r, right, directions, hidden, 4 * hidden), some(8 * hidden), None, some(batch, hidden),
              some(batch, hidden), some(3 * hidden), w_scale, w_zero, r_scale, r_zero]
    attrs = {"hidden_size": hidden, "direction": direction}
    return {"inputs": inputs, "attrs": attrs, "results": [True, True, True], "stored": (1, 2)}
