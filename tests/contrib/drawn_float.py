"""Draws cases of operators on floats. A function gets a generator of numbers, and returns inputs, attributes, which inputs
are stored in the model, which results are wanted."""
import numpy as np

DRAWN = {}


def drawn(name):
    def register(draw):
        DRAWN[name] = draw
        return draw
    return register


def f32(r, *dims):
    return r.uniform(-2, 2, dims).astype(np.float32)


def ints(r, low, high, *dims, dtype=np.int32):
    return r.integers(low, high, dims, dtype=dtype)


def flag(r):
    return bool(r.integers(0, 2))


def one_of(r, *choices):
    return choices[r.integers(0, len(choices))]


def n(r, low=1, high=5):
    return int(r.integers(low, high + 1))


def dims(r, low=1, high=4):
    return [n(r) for _ in range(n(r, low, high))]


@drawn("FusedMatMul")
def fused_matmul(r):
    batch = [n(r, 1, 3) for _ in range(n(r, 0, 2))]
    m, k, cols = n(r), n(r, 1, 8), n(r)
    flags = {name: int(flag(r)) for name in ["transA", "transB"]}
    if batch:
        flags |= {name: int(flag(r)) for name in ["transBatchA", "transBatchB"]}

    def operand(rows, columns, transposed, batched):
        if transposed:
            rows, columns = columns, rows
        return [rows, *batch, columns] if batched else [*batch, rows, columns]

    a = operand(m, k, flags["transA"], flags.get("transBatchA"))
    b = operand(k, cols, flags["transB"], flags.get("transBatchB"))
    attrs = {**flags, "alpha": one_of(r, 1.0, 0.5, -2.0)}
    return {"inputs": [f32(r, *a), f32(r, *b)], "attrs": attrs}


@drawn("TransposeMatMul")
def transpose_matmul(r):
    case = fused_matmul(r)
    while "transBatchA" in case["attrs"] and (case["attrs"]["transBatchA"] or case["attrs"]["transBatchB"]):
        case = fused_matmul(r)
    case["attrs"] = {k: v for k, v in case["attrs"].items() if "Batch" not in k}
    return case


@drawn("FusedGemm")
def fused_gemm(r):
    m, k, cols = n(r), n(r, 1, 8), n(r)
    ta, tb = flag(r), flag(r)
    activation, extra = one_of(r, ("Relu", {}), ("Sigmoid", {}), ("Tanh", {}), ("LeakyRelu", {"activation_alpha": 0.2}),
                               ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}), ("Softplus", {}),
                               ("Elu", {"activation_alpha": 0.7}), ("ThresholdedRelu", {"activation_alpha": 0.3}),
                               ("Softsign", {}), ("Selu", {"activation_alpha": 1.5, "activation_gamma": 1.1}))
    c = one_of(r, None, [m, cols], [cols], [m, 1], [1])
    inputs = [f32(r, *([k, m] if ta else [m, k])), f32(r, *([cols, k] if tb else [k, cols]))]
    if c is not None:
        inputs.append(f32(r, *c))
    attrs = {"transA": int(ta), "transB": int(tb), "alpha": one_of(r, 1.0, 0.5), "beta": one_of(r, 1.0, -1.5),
             "activation": activation, **extra}
    return {"inputs": inputs, "attrs": attrs}


@drawn("FusedConv")
def fused_conv(r):
    rank, group = n(r, 1, 2), one_of(r, 1, 1, 2)
    x = [n(r, 1, 2), group * n(r, 1, 3)] + [n(r, 5, 8) for _ in range(rank)]
    kernel = [n(r, 1, 3) for _ in range(rank)]
    w = [group * n(r, 1, 3), x[1] // group, *kernel]
    pads = [n(r, 0, 1) for _ in range(2 * rank)]
    strides = [n(r, 1, 2) for _ in range(rank)]
    activation, numbers = one_of(r, ("Relu", None), ("Sigmoid", None), ("Tanh", None), ("LeakyRelu", [0.3]),
                                 ("Clip", [-0.5, 1.5]), ("HardSigmoid", [0.3, 0.4]))
    attrs = {"group": group, "kernel_shape": kernel, "pads": pads, "strides": strides, "activation": activation}
    if numbers:
        attrs["activation_params"] = numbers
    inputs = [f32(r, *x), f32(r, *w), f32(r, w[0]) if flag(r) else None]
    if rank == 2 and flag(r):
        out = [(d + pads[i] + pads[rank + i] - k) // s + 1 for i, (d, k, s) in enumerate(zip(x[2:], kernel, strides))]
        inputs.append(f32(r, x[0], w[0], *out))
    return {"inputs": inputs, "attrs": attrs}


@drawn("ConvTransposeWithDynamicPads")
def conv_transpose(r):
    x = [n(r, 1, 2), n(r, 1, 3), n(r, 2, 5), n(r, 2, 5)]
    w = [x[1], n(r, 1, 3), n(r, 2, 3), n(r, 2, 3)]
    pads = np.array([n(r, 0, 1) for _ in range(4)], np.int64)
    attrs = {"strides": [n(r, 1, 2), n(r, 1, 2)], "kernel_shape": w[2:]}
    inputs = [f32(r, *x), f32(r, *w), pads, f32(r, w[1]) if flag(r) else None]
    return {"inputs": inputs, "attrs": attrs, "stored": one_of(r, (2,), ())}


@drawn("Gelu")
def gelu(r):
    return {"inputs": [3 * f32(r, *dims(r))]}


@drawn("BiasGelu")
def bias_gelu(r):
    d = dims(r, 1, 3)
    return {"inputs": [f32(r, *d), f32(r, d[-1])]}


@drawn("FastGelu")
def fast_gelu(r):
    d = dims(r, 1, 3)
    return {"inputs": [f32(r, *d)] + ([f32(r, d[-1])] if flag(r) else [])}


@drawn("QuickGelu")
def quick_gelu(r):
    return {"inputs": [3 * f32(r, *dims(r))], "attrs": one_of(r, {}, {"alpha": 0.5}, {"alpha": 1.0})}


def skip(r, simplified):
    dtype = one_of(r, np.float32, np.float32, np.float16)
    d = [n(r, 1, 3), n(r, 1, 4), n(r, 2, 9)]
    other = one_of(r, d, d, [1, *d[1:]], d[1:])
    inputs = [f32(r, *d), f32(r, *other), f32(r, d[2])]
    if not simplified:
        inputs.append(f32(r, d[2]) if flag(r) else None)
    inputs.append(f32(r, d[2]) if flag(r) else None)
    while inputs[-1] is None:
        inputs.pop()
    inputs = [x if x is None else x.astype(dtype) for x in inputs]
    results = one_of(r, [True], [True, False, False, True])
    return {"inputs": inputs, "attrs": {"epsilon": one_of(r, 1e-5, 1e-12)}, "results": results}


@drawn("SkipLayerNormalization")
def skip_layer_norm(r):
    return skip(r, False)


@drawn("SkipSimplifiedLayerNormalization")
def skip_simplified(r):
    return skip(r, True)


@drawn("SimplifiedLayerNormalization")
def simplified(r):
    d = dims(r, 1, 3)
    axis = int(r.integers(0, len(d)))
    dtype = one_of(r, np.float32, np.float64, np.float16)
    inputs = [f32(r, *d).astype(dtype), f32(r, *d[axis:]).astype(dtype)]
    attrs = {"axis": one_of(r, axis, axis - len(d)), "epsilon": 1e-4}
    results = one_of(r, [True], [True, True]) if dtype != np.float16 else [True]
    return {"inputs": inputs, "attrs": attrs, "domain": "", "results": results}


@drawn("LayerNormalization1")
def layer_norm(r):
    d = dims(r, 1, 3)
    axis = int(r.integers(0, len(d)))
    inputs = [f32(r, *d), f32(r, *d[axis:])] + ([f32(r, *d[axis:])] if flag(r) else [])
    results = one_of(r, [True], [True, True, True])
    attrs = {"axis": axis, "epsilon": 1e-4}
    return {"op": "LayerNormalization", "inputs": inputs, "attrs": attrs, "domain": "", "results": results}


@drawn("EmbedLayerNormalization")
def embed(r):
    batch, seq, hidden = n(r, 1, 3), n(r, 1, 5), n(r, 2, 8)
    words, places, segments = n(r, 2, 9), seq + n(r, 0, 3), n(r, 1, 3)
    with_segment, with_mask, with_place = flag(r), flag(r), flag(r)
    inputs = [
        ints(r, 0, words, batch, seq),
        ints(r, 0, segments, batch, seq) if with_segment else None,
        f32(r, words, hidden),
        f32(r, places, hidden),
        f32(r, segments, hidden) if with_segment else None,
        f32(r, hidden),
        f32(r, hidden),
        ints(r, 0, 2, batch, seq) if with_mask else None,
        ints(r, 0, places, one_of(r, 1, batch), seq) if with_place else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    return {"inputs": inputs, "attrs": {"epsilon": 1e-6}, "results": one_of(r, [True, True], [True, True, True])}


@drawn("Inverse")
def inverse(r):
    size = n(r, 1, 5)
    x = f32(r, *[n(r, 1, 3) for _ in range(n(r, 0, 2))], size, size)
    return {"inputs": [x + 4 * np.eye(size, dtype=np.float32)]}


@drawn("Trilu")
def trilu(r):
    d = [*dims(r, 0, 2), n(r), n(r)]
    x = one_of(r, f32(r, *d), ints(r, -9, 9, *d, dtype=np.int64), f32(r, *d).astype(np.float64))
    inputs = [x] + ([np.array(r.integers(-3, 4), np.int64)] if flag(r) else [])
    return {"inputs": inputs, "attrs": {"upper": int(flag(r))}}


@drawn("Unique")
def unique(r):
    x = ints(r, 0, 4, n(r, 1, 12)).astype(np.float32)
    return {"inputs": [x], "results": [True, True, True]}


@drawn("ExpandDims")
def expand_dims(r):
    d = dims(r, 1, 3)
    axis = np.array(r.integers(-len(d) - 1, len(d) + 1), np.int32)
    return {"inputs": [f32(r, *d), axis], "stored": (1,)}


@drawn("Range")
def arange(r):
    dtype = one_of(r, np.int32, np.int64, np.float32, np.int16)
    start, limit = int(r.integers(-5, 5)), int(r.integers(0, 12))
    inputs = [np.array(start, dtype), np.array(limit, dtype)]
    if flag(r):
        inputs.append(np.array(n(r, 1, 3), dtype))
    return {"inputs": inputs, "stored": one_of(r, (0, 1, 2), ())}


@drawn("GatherND")
def gather_nd(r):
    d = [n(r, 2, 4) for _ in range(n(r, 1, 3))]
    width = n(r, 1, len(d))
    at = np.stack([r.integers(-size, size, (2, 3)) for size in d[:width]], -1)
    return {"inputs": [f32(r, *d), at.astype(one_of(r, np.int32, np.int64))]}


@drawn("Pad")
def pad(r):
    d = dims(r, 1, 3)
    pads = np.array([n(r, 0, 2) for _ in range(2 * len(d))], np.int64)
    mode = one_of(r, "constant", "constant", "edge")
    inputs = [f32(r, *d), pads] + ([f32(r, 1)] if flag(r) and mode == "constant" else [])
    return {"inputs": inputs, "attrs": {"mode": mode}, "stored": (1,)}


@drawn("GridSample")
def grid_sample(r):
    x = [n(r, 1, 2), n(r, 1, 3), n(r, 2, 5), n(r, 2, 5)]
    grid = r.uniform(-1.4, 1.4, (x[0], n(r), n(r), 2)).astype(np.float32)
    attrs = {"mode": one_of(r, "bilinear", "nearest", "bicubic"), "padding_mode": one_of(r, "zeros", "border", "reflection"),
             "align_corners": int(flag(r))}
    if attrs["mode"] == "bicubic":
        # At other borders the reference implementation of ONNX computes something else.
        attrs["padding_mode"] = "zeros"
    return {"inputs": [f32(r, *x), grid], "attrs": attrs}


@drawn("CDist")
def cdist(r):
    width = n(r, 1, 6)
    dtype = one_of(r, np.float32, np.float64)
    inputs = [f32(r, n(r), width).astype(dtype), f32(r, n(r), width).astype(dtype)]
    return {"inputs": inputs, "attrs": {"metric": one_of(r, "sqeuclidean", "euclidean")}}


@drawn("CropAndResize")
def crop_and_resize(r):
    x = [n(r, 1, 3), n(r, 1, 3), n(r, 2, 6), n(r, 2, 6)]
    crops = n(r, 1, 4)
    boxes = r.uniform(-0.2, 1.2, (crops, 4)).astype(np.float32)
    size = np.array([n(r, 1, 4), n(r, 1, 4)], np.int32)
    attrs = {"mode": one_of(r, "bilinear", "nearest"), "extrapolation_value": one_of(r, 0.0, 1.5)}
    return {"inputs": [f32(r, *x), boxes, ints(r, 0, x[0], crops), size], "attrs": attrs, "stored": (3,)}


@drawn("NhwcMaxPool")
def nhwc_max_pool(r):
    x = [n(r, 1, 2), n(r, 4, 7), n(r, 4, 7), n(r, 1, 4)]
    dtype = one_of(r, np.int8, np.uint8)
    kernel = [n(r, 1, 3), n(r, 1, 3)]
    attrs = {"kernel_shape": kernel, "strides": [n(r, 1, 2), n(r, 1, 2)], "pads": [n(r, 0, k - 1) for k in kernel] * 2}
    low = -128 if dtype == np.int8 else 0
    return {"inputs": [r.integers(low, low + 256, x).astype(dtype)], "attrs": attrs}


@drawn("UnfoldTensor")
def unfold(r):
    d = [n(r, 2, 5) for _ in range(n(r, 1, 3))]
    axis = int(r.integers(0, len(d)))
    attrs = {"dim": one_of(r, axis, axis - len(d)), "size": n(r, 1, d[axis]), "step": n(r, 1, 2)}
    return {"inputs": [f32(r, *d)], "attrs": attrs}


@drawn("NGramRepeatBlock")
def ngram(r):
    batch, words = n(r, 1, 3), n(r, 2, 4)
    ids = ints(r, 0, words, batch, n(r, 1, 9), dtype=np.int64)
    return {"inputs": [ids, f32(r, batch, words)], "attrs": {"ngram_size": n(r, 1, 3)}}


@drawn("WordConvEmbedding")
def word_conv(r):
    length, filters, width, size, chars = n(r, 3, 6), n(r, 1, 4), n(r, 1, 3), n(r, 1, 4), 6
    words = ints(r, 1, chars, n(r), length)
    for row in words:
        row[n(r, 1, length):] = 0
    return {"inputs": [words, f32(r, filters, 1, width, size), f32(r, filters), f32(r, chars, size)]}


@drawn("DynamicTimeWarping")
def time_warping(r):
    return {"inputs": [f32(r, *one_of(r, [], [1]), n(r, 1, 6), n(r, 1, 6))]}


@drawn("BifurcationDetector")
def bifurcation(r):
    source = ints(r, 0, 5, n(r, 2, 9), dtype=np.int64)
    previous = int(r.integers(0, len(source) + 1))
    inputs = [source, ints(r, 0, 5, n(r, 1, 6), dtype=np.int64), np.array([previous], np.int64)]
    if flag(r):
        inputs.append(np.append(source[previous:], ints(r, 0, 5, 1, dtype=np.int64)))
    return {"inputs": inputs, "attrs": {"min_ngram_size": 1, "max_ngram_size": n(r, 1, 3)}, "results": [True, True]}


@drawn("MoE")
def mixture(r):
    rows, hidden, inner, experts = n(r, 1, 5), n(r, 2, 6), n(r, 1, 6), n(r, 1, 5)
    kind = one_of(r, "relu", "gelu", "silu", "identity", "swiglu")
    wide = 2 * inner if kind == "swiglu" else inner
    shape = [rows, hidden] if flag(r) else [1, rows, hidden]
    inputs = [f32(r, *shape), f32(r, rows, experts), f32(r, experts, wide, hidden), f32(r, experts, wide) if flag(r) else None,
              f32(r, experts, hidden, inner), f32(r, experts, hidden) if flag(r) else None]
    while inputs[-1] is None:
        inputs.pop()
    attrs = {"k": n(r, 1, experts), "activation_type": kind, "normalize_routing_weights": int(flag(r))}
    if kind == "swiglu":
        attrs |= {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0}
        if flag(r):
            attrs["swiglu_limit"] = 1.5
    return {"inputs": inputs, "attrs": attrs}


@drawn("MurmurHash3")
def murmur_hash3(r):
    dtype = one_of(r, np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64)
    bits = r.integers(0, 256, (*dims(r, 0, 2), n(r), np.dtype(dtype).itemsize), dtype=np.uint8)
    attrs = one_of(r, {}, {"seed": 42}, {"positive": 0}, {"seed": 7, "positive": 1})
    return {"inputs": [bits.view(dtype)[..., 0]], "attrs": attrs}


@drawn("MaxpoolWithMask")
def max_pool_with_mask(r):
    rank = n(r, 1, 3)
    x = [n(r, 1, 2), n(r, 1, 3)] + [n(r, 3, 6) for _ in range(rank)]
    kernel = [n(r, 1, 3) for _ in range(rank)]
    attrs = {"kernel_shape": kernel, "strides": [n(r, 1, 2) for _ in range(rank)], "pads": [n(r, 0, k - 1) for k in kernel] * 2}
    return {"inputs": [f32(r, *x), (r.random([1, 1, *x[2:]]) < 0.8).astype(np.int32)], "attrs": attrs}
