//! Graphs with operands and parameters that nothing guesses.

/// Graphs with their names. `?` before a shape stands for the float type.
pub const CASES: &[(&str, &str)] = &[
    (
        "convolution",
        "(%x: ?[2, 4, 6, 5], %w: ?[6, 2, 3, 2], %b: ?[6]) { %y = conv(%x, %w, %b) {group=2, strides=[2, 1], pads=[1, 0, 1, 1], dilations=[1, 2]} return %y }",
    ),
    (
        "depthwise convolution",
        "(%x: ?[1, 3, 5, 5], %w: ?[3, 1, 3, 3]) { %y = conv(%x, %w) {group=3, pads=[1, 1, 1, 1]} return %y }",
    ),
    (
        "convolution of volumes",
        "(%x: ?[1, 2, 3, 4, 3], %w: ?[2, 2, 2, 2, 2]) { %y = conv(%x, %w) {strides=[1, 2, 1]} return %y }",
    ),
    (
        "transposed convolution",
        "(%x: ?[2, 4, 3, 2], %w: ?[4, 2, 3, 3], %b: ?[4]) { %y = conv_transpose(%x, %w, %b) {group=2, strides=[2, 2], pads=[1, 0, 1, 1]} return %y }",
    ),
    (
        "transposed convolution that tiles",
        "(%x: ?[1, 3, 2, 2], %w: ?[3, 2, 2, 2]) { %y = conv_transpose(%x, %w) {strides=[2, 2]} return %y }",
    ),
    (
        "max pooling",
        "(%x: ?[1, 2, 6, 7]) { %y = max_pool(%x) {kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]} return %y }",
    ),
    (
        "max pooling with positions",
        "(%x: ?[1, 2, 5]) { %y = max_pool(%x) {kernel_shape=[3], dilations=[2]} : (?, ?) return %y, %y:1 }",
    ),
    (
        "average pooling",
        "(%x: ?[1, 2, 6, 7]) { %y = average_pool(%x) {kernel_shape=[3, 2], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=true} return %y }",
    ),
    ("pooling by norms", "(%x: ?[1, 2, 6]) { %y = lp_pool(%x) {kernel_shape=[3], p=3, pads=[1, 1]} return %y }"),
    (
        "batch normalisation in training",
        "(%x: ?[3, 2, 4], %g: ?[2], %b: ?[2], %m: ?[2], %v: ?[2]) { %y = batch_norm(%x, %g, %b, %m, %v) {training_mode=true} return %y }",
    ),
    (
        "layer normalisation",
        "(%x: ?[3, 2, 4], %g: ?[2, 4], %b: ?[2, 4]) { %y = layer_norm(%x, %g, %b) {axis=1} : (?, ?, ?) return %y, %y:1, %y:2 }",
    ),
    (
        "group normalisation",
        "(%x: ?[2, 4, 3], %g: ?[4], %b: ?[4]) { %y = group_norm(%x, %g, %b) {num_groups=2} return %y }",
    ),
    ("gated Swish", "(%a: ?[2, 3], %b: ?[2, 3]) { %y = swiglu(%a, %b) {alpha=1.5} return %y }"),
    (
        "softmax over the first axis",
        "(%x: ?[4, 3]) { %y = softmax(%x) {axis=0} %z = log_softmax(%x) {axis=0} return %y, %z }",
    ),
    (
        "scaled product",
        "(%a: ?[4, 3], %b: ?[5, 4], %c: ?[5]) { %y = gemm(%a, %b, %c) {transA=true, transB=true, alpha=0.5, beta=2.0} return %y }",
    ),
    (
        "attention",
        "(%q: ?[1, 2, 3, 4], %k: ?[1, 1, 5, 4], %v: ?[1, 1, 5, 3]) { %y = attention(%q, %k, %v) {is_causal=true} return %y }",
    ),
    ("grid", "(%t: ?[2, 2, 3]) { %s = const i64[4] [2, 1, 3, 4] %y = affine_grid(%t, %s) return %y }"),
    (
        "samples at the border",
        "(%x: ?[1, 2, 4, 5], %g: ?[1, 3, 2, 2]) { %y = grid_sample(%x, %g) {padding_mode=\"border\", align_corners=true} return %y }",
    ),
    (
        "samples by reflection",
        "(%x: ?[1, 2, 4, 5], %g: ?[1, 3, 2, 2]) { %h = add(%g, %g) %y = grid_sample(%x, %h) {padding_mode=\"reflection\"} return %y }",
    ),
    ("cubic samples", "(%x: ?[1, 1, 4, 5], %g: ?[1, 3, 2, 2]) { %y = grid_sample(%x, %g) {mode=\"cubic\"} return %y }"),
    (
        "deformed convolution",
        "(%x: ?[1, 4, 4, 5], %w: ?[2, 2, 2, 2], %o: ?[1, 16, 3, 4], %b: ?[2], %m: ?[1, 8, 3, 4]) { %y = deform_conv(%x, %w, %o, %b, %m) {group=2, offset_group=2} return %y }",
    ),
    (
        "resampling",
        "(%x: ?[1, 2, 3, 4]) { %s = const f32[4] [1.0, 1.0, 2.0, 1.5] %y = resize(%x, _, %s) {mode=\"linear\"} return %y }",
    ),
    (
        "padding by reflection",
        "(%x: ?[4, 3]) { %p = const i64[4] [2, 1, 1, 2] %y = pad(%x, %p) {mode=\"reflect\"} return %y }",
    ),
    (
        "padding by the edge",
        "(%x: ?[4, 3]) { %p = const i64[4] [2, 1, 1, 2] %y = pad(%x, %p) {mode=\"edge\"} return %y }",
    ),
    (
        "padding by wrapping",
        "(%x: ?[4, 3]) { %p = const i64[4] [2, 1, 1, 2] %y = pad(%x, %p) {mode=\"wrap\"} return %y }",
    ),
    (
        "columns to image",
        "(%x: ?[1, 12, 9]) { %i = const i64[2] [4, 3] %k = const i64[2] [3, 2] %y = col2im(%x, %i, %k) {pads=[1, 0, 0, 1]} return %y }",
    ),
    (
        "tuples with batches",
        "(%x: ?[2, 3, 4, 2]) { %i = const i64[2, 2, 2] [0, 1, 2, 3, -1, 0, 1, 1] %y = gather_nd(%x, %i) {batch_dims=1} return %y }",
    ),
    (
        "the same tuple twice",
        "(%x: ?[3, 4], %u: ?[3, 4]) { %i = const i64[3, 1] [1, 2, 1] %y = scatter_nd(%x, %i, %u) %z = scatter_nd(%x, %i, %u) {reduction=\"add\"} return %y, %z }",
    ),
    (
        "the same element twice",
        "(%x: ?[3, 4], %u: ?[2, 3]) { %i = const i64[2, 3] [1, 0, 1, 2, -1, 0] %y = scatter_elements(%x, %i, %u) {axis=1} %z = scatter_elements(%x, %i, %u) {axis=0, reduction=\"add\"} return %y, %z }",
    ),
    (
        "a ring",
        "(%x: ?[2, 4, 3], %u: ?[2, 2, 3]) { %i = const i64[2] [3, 1] %y = tensor_scatter(%x, %u, %i) {mode=\"circular\"} return %y }",
    ),
    ("reversed steps", "(%x: ?[4, 3]) { %n = const i64[3] [2, 4, 1] %y = reverse_sequence(%x, %n) return %y }"),
    (
        "exclusive running sum from the end",
        "(%x: ?[2, 5]) { %a = const i64[] [1] %y = cumsum(%x, %a) {exclusive=true, reverse=true} return %y }",
    ),
    (
        "running product through a zero",
        "(%x: ?[2, 5]) { %c = const i64[5] [1, 1, 0, 1, 1] %d = cast_like(%c, %x) %m = mul(%x, %d) %a = const i64[] [1] %y = cumprod(%m, %a) %z = cumprod(%m, %a) {exclusive=true, reverse=true} return %y, %z }",
    ),
    (
        "product through a zero",
        "(%x: ?[2, 5]) { %c = const i64[5] [1, 1, 0, 1, 1] %d = cast_like(%c, %x) %m = mul(%x, %d) %y = reduce_prod(%m) return %y }",
    ),
    (
        "order",
        "(%x: ?[3, 20]) { %k = const i64[1] [18] %y = topk(%x, %k) {largest=false} : (?, ?) %z = sort(%x) {axis=0, is_ascend=false} return %y, %z }",
    ),
    ("sum of products", "(%a: ?[2, 3, 4], %b: ?[4, 2]) { %y = einsum(%a, %b) {equation=\"bij,jb->ib\"} return %y }"),
    ("diagonal of products", "(%a: ?[3, 3], %b: ?[3]) { %y = einsum(%a, %b) {equation=\"ii,j->i\"} return %y }"),
    (
        "unpooling",
        "(%x: ?[1, 1, 2, 2]) { %i = const i64[1, 1, 2, 2] [0, 3, 9, 14] %y = max_unpool(%x, %i) {kernel_shape=[2, 2], strides=[2, 2]} return %y }",
    ),
    (
        "regions by averages",
        "(%x: ?[2, 2, 5, 6]) { %r = const ?[2, 4] [0.5, 1.0, 4.0, 3.5, 1.0, 0.0, 5.5, 4.0] %i = const i64[2] [1, 0] %y = roi_align(%x, %r, %i) {output_height=2, output_width=3} return %y }",
    ),
    (
        "regions by maxima",
        "(%x: ?[2, 2, 5, 6]) { %r = const ?[2, 5] [1, 0, 1, 4, 3, 0, 1, 0, 5, 4] %y = max_roi_pool(%x, %r) {pooled_shape=[2, 3]} return %y }",
    ),
    (
        "convolution over the past",
        "(%x: ?[2, 3, 5], %w: ?[3, 1, 3], %b: ?[3], %p: ?[2, 3, 2]) { %y = causal_conv_with_state(%x, %w, %b, %p) {activation=\"silu\"} : (?, ?) return %y, %y:1 }",
    ),
    ("local response", "(%x: ?[2, 5, 3]) { %y = lrn(%x) {size=3, alpha=0.1} return %y }"),
    (
        "loss",
        "(%x: ?[3, 4], %w: ?[4]) { %t = const i64[3] [1, 3, 0] %y = softmax_cross_entropy_loss(%x, %t, %w) return %y }",
    ),
    (
        "MXNet's convolution",
        "(%x: ?[2, 3, 5, 4], %w: ?[4, 3, 3, 2], %b: ?[4]) { %y = mx_convolution(%x, %w, %b) {kernel=[3, 2], stride=[2, 1], pad=[1, 0], num_filter=4} return %y }",
    ),
    (
        "MXNet's transposed convolution",
        "(%x: ?[2, 3, 3, 4], %w: ?[3, 2, 3, 2]) { %y = mx_deconvolution(%x, %w) {kernel=[3, 2], stride=[2, 1], pad=[1, 0], num_filter=2} return %y }",
    ),
    (
        "MXNet's embedding",
        "(%w: ?[5, 3]) { %i = const i64[2, 3] [0, 4, 1, 1, 1, 3] %y = mx_embedding(%i, %w) {input_dim=5, output_dim=3} return %y }",
    ),
    (
        "MXNet's group normalisation",
        "(%x: ?[2, 4, 3], %g: ?[2], %b: ?[2]) { %y = mx_group_norm(%x, %g, %b) {num_groups=2} : (?, ?, ?) return %y }",
    ),
    (
        "MXNet's pooling",
        "(%x: ?[1, 2, 6, 5]) { %y = mx_pooling(%x) {kernel=[3, 2], stride=[2, 2], pad=[1, 0]} %z = mx_pooling(%x) {kernel=[2, 2], pool_type=\"avg\", pooling_convention=\"full\", stride=[2, 2]} %u = mx_pooling_v1(%x) {kernel=[2, 2], pool_type=\"sum\"} return %y, %z, %u }",
    ),
    ("MXNet's reshape", "(%x: ?[2, 3, 4]) { %y = mx_reshape(%x) {shape=[-3, 0]} return %y }"),
    (
        "MXNet's tuples",
        "(%x: ?[3, 2]) { %i = const i64[1, 3] [0, 2, 3] %y = mx_scatter_nd(%x, %i) {shape=[4, 2]} return %y }",
    ),
    (
        "MXNet's assignment to a slice",
        "(%x: ?[4, 3], %u: ?[2, 2]) { %y = mx_slice_assign(%x, %u) {begin=[1, 0], end=[3, 2]} return %y }",
    ),
    (
        "MXNet's loss of sequences",
        "(%x: ?[4, 2, 3]) { %l = const i64[2, 2] [1, 2, 1, 0] %y = mx_ctc_loss(%x, %l) : (?, ?) return %y }",
    ),
    (
        "an LSTM's steps",
        "(%x: ?[3, 2, 8], %w: ?[8, 2], %h: ?[2, 2], %c: ?[2, 2]) { %y = recurrent(%x, %w, %h, %c) {mode=\"lstm\"} : (?, ?) return %y, %y:1 }",
    ),
    (
        "a GRU's steps",
        "(%x: ?[3, 2, 6], %w: ?[6, 2], %h: ?[2, 2], %b: ?[6]) { %y = recurrent(%x, %w, %h, _, %b) {mode=\"gru\"} return %y }",
    ),
    (
        "the steps of a simple cell",
        "(%x: ?[3, 2, 2], %w: ?[2, 2], %h: ?[2, 2], %b: ?[2]) { %y = recurrent(%x, %w, %h, _, %b) return %y }",
    ),
    (
        "MXNet's recurrent layers",
        "(%x: ?[2, 1, 2], %p: ?[96], %h: ?[2, 1, 2], %c: ?[2, 1, 2]) { %y = mx_rnn(%x, %p, %h, %c) {mode=\"lstm\", state_size=2, num_layers=1, bidirectional=true, state_outputs=true} : (?, ?, ?) return %y, %y:1, %y:2 }",
    ),
    (
        "layers of LSTM cells in both directions",
        "(%x: ?[3, 2, 2], %w: ?[2, 8, 2], %r: ?[2, 8, 2], %b: ?[2, 16]) { %n = const i64[2] [3, 2] %y = lstm(%x, %w, %r, %b, %n) {direction=\"bidirectional\"} : (?, ?, ?) return %y, %y:1, %y:2 }",
    ),
    (
        "LSTM cells with peepholes",
        "(%x: ?[2, 2, 2], %w: ?[1, 8, 2], %r: ?[1, 8, 2], %b: ?[1, 16], %h: ?[1, 2, 2], %c: ?[1, 2, 2], %p: ?[1, 6]) { %y = lstm(%x, %w, %r, %b, _, %h, %c, %p) : (?, ?, ?) return %y, %y:2 }",
    ),
    (
        "layers of GRU cells",
        "(%x: ?[3, 2, 2], %w: ?[1, 6, 2], %r: ?[1, 6, 2], %b: ?[1, 12], %h: ?[1, 2, 2]) { %y = gru(%x, %w, %r, %b, _, %h) {direction=\"reverse\"} : (?, ?) %z = gru(%x, %w, %r, %b) {linear_before_reset=1} return %y, %y:1, %z }",
    ),
    (
        "layers of simple cells",
        "(%x: ?[3, 2, 2], %w: ?[1, 2, 2], %r: ?[1, 2, 2]) { %y = rnn(%x, %w, %r) : (?, ?) return %y, %y:1 }",
    ),
    (
        "symmetric eigenvalues and orthogonal rows",
        "(%a: ?[2, 3, 3], %x: ?[2, 3, 4]) { %e = const ?[3, 3] [2.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 9.0] %m = add(%a, %e) %y = mx_linalg_syevd(%m) : (?, ?) %z = mx_linalg_gelqf(%x) : (?, ?) return %y, %y:1, %z, %z:1 }",
    ),
    (
        "a Cholesky factor",
        "(%x: ?[2, 3, 3]) { %s = mx_linalg_syrk(%x) %e = const ?[3, 3] [2.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 2.0] %a = add(%s, %e) %y = mx_linalg_potrf(%a) %z = mx_linalg_potri(%y) return %y, %z }",
    ),
    (
        "triangular systems",
        "(%a: ?[2, 3, 3], %x: ?[2, 2, 3], %z: ?[2, 3, 2]) { %e = const ?[3, 3] [3.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 3.0] %m = add(%a, %e) %u = mx_linalg_trsm(%m, %x) {rightside=true, alpha=0.5} %v = mx_linalg_trsm(%m, %z) {transpose=true, lower=false} %w = mx_linalg_trmm(%m, %z) {lower=false} return %u, %v, %w }",
    ),
    (
        "inverse and determinant",
        "(%a: ?[2, 3, 3]) { %e = const ?[3, 3] [3.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 3.0] %m = add(%a, %e) %u = mx_linalg_inverse(%m) %v = mx_linalg_slogdet(%m) : (?, ?) %w = mx_linalg_det(%m) %d = det(%m) return %u, %v:1, %w, %d }",
    ),
    (
        "Fourier transforms",
        "(%x: ?[2, 6, 2], %r: ?[2, 9, 1], %w: ?[4]) { %n = const i64[] [5] %l = const i64[] [8] %s = const i64[] [2] %u = dft(%x, %n) %v = dft(%x, %l) {inverse=true, onesided=true} %y = stft(%r, %s, %w) return %u, %v, %y }",
    ),
    (
        "products of matrices",
        "(%a: ?[2, 3, 4], %b: ?[2, 4, 2], %c: ?[2, 3, 2]) { %y = mx_linalg_gemm(%a, %b, %c) {alpha=0.5, beta=2.0} %z = mx_linalg_gemm2(%a, %b) return %y, %z }",
    ),
    (
        "triangles and diagonals",
        "(%a: ?[2, 3, 3], %v: ?[6]) { %y = mx_linalg_extracttrian(%a) {lower=false} %z = mx_linalg_maketrian(%v) %d = mx_linalg_extractdiag(%a) {offset=1} %m = mx_linalg_makediag(%v) {offset=-1} return %y, %z, %d, %m }",
    ),
    (
        "interleaved attention",
        "(%x: ?[3, 2, 12], %a: ?[4, 3, 3], %q: ?[3, 2, 4], %k: ?[3, 2, 8]) { %y = mx_interleaved_matmul_selfatt_qk(%x) {heads=2} %z = mx_interleaved_matmul_selfatt_valatt(%x, %a) {heads=2} %u = mx_interleaved_matmul_encdec_qk(%q, %k) {heads=2} %v = mx_interleaved_matmul_encdec_valatt(%k, %a) {heads=2} return %y, %z, %u, %v }",
    ),
    (
        "transformers of space",
        "(%x: ?[1, 2, 4, 5], %t: ?[1, 6], %f: ?[1, 2, 3, 3]) { %y = mx_spatial_transformer(%x, %t) {target_shape=[3, 4], transform_type=\"affine\", sampler_type=\"bilinear\"} %g = mx_grid_generator(%f) {transform_type=\"warp\"} %z = mx_bilinear_sampler(%x, %g) return %y, %z }",
    ),
    (
        "MXNet's correlation",
        "(%x: ?[1, 2, 4, 4], %y: ?[1, 2, 4, 4]) { %z = mx_correlation(%x, %y) {max_displacement=1, pad_size=1} return %z }",
    ),
    (
        "MXNet's regions",
        "(%x: ?[2, 2, 5, 6]) { %r = const ?[2, 5] [0.0, 0.5, 1.0, 4.0, 3.5, 1.0, 1.0, 0.0, 5.5, 4.0] %y = mx_roi_align(%x, %r) {pooled_size=[2, 3], spatial_scale=1.0, sample_ratio=2} %z = mx_roi_pooling(%x, %r) {pooled_size=[2, 2], spatial_scale=1.0} return %y, %z }",
    ),
    (
        "regions with channels by bin",
        "(%x: ?[2, 8, 5, 6]) { %r = const ?[2, 5] [0.0, 0.5, 1.0, 4.0, 3.5, 1.0, 1.0, 0.0, 5.5, 9.0] %y = mx_psroi_pooling(%x, %r) {output_dim=2, pooled_size=3, group_size=2, spatial_scale=0.5} return %y }",
    ),
    (
        "sums of logarithms, columns put back",
        "(%a: ?[2, 3, 3], %x: ?[1, 8, 9]) { %e = const ?[3, 3] [9.0, 0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 9.0] %m = add(%a, %e) %y = mx_linalg_sumlogdiag(%m) %z = mx_col2im(%x) {kernel=[2, 2], output_size=[4, 4]} return %y, %z }",
    ),
    ("decoded boxes", "(%x: ?[2, 3, 4], %a: ?[1, 3, 4]) { %y = mx_box_decode(%x, %a) {format=\"corner\"} return %y }"),
    (
        "product with transposed batches",
        "(%a: ?[3, 2, 4], %b: ?[5, 2, 4]) { %y = fused_matmul(%a, %b) {alpha=0.5, transB=true, transBatchA=true, transBatchB=true} return %y }",
    ),
    (
        "activations with a bias",
        "(%x: ?[2, 3], %b: ?[3]) { %y = bias_gelu(%x, %b) %z = fast_gelu(%x, %b) return %y, %z }",
    ),
    (
        "product with an activation",
        "(%a: ?[2, 3], %b: ?[3, 4], %c: ?[4]) { %y = fused_gemm(%a, %b, %c) {activation=\"Tanh\", beta=0.5} return %y }",
    ),
    (
        "convolution with a sum and an activation",
        "(%x: ?[1, 2, 4, 4], %w: ?[2, 2, 3, 3], %b: ?[2], %z: ?[1, 2, 4, 4]) { %y = fused_conv(%x, %w, %b, %z) {pads=[1, 1, 1, 1], activation=\"Sigmoid\"} return %y }",
    ),
    (
        "transposed convolution with pads as an operand",
        "(%x: ?[1, 2, 3, 2], %w: ?[2, 1, 3, 3]) { %p = const i64[4] [1, 0, 0, 1] %y = conv_transpose_dynamic_pads(%x, %w, %p) return %y }",
    ),
    (
        "layer normalisation of sums",
        "(%x: ?[2, 3, 4], %s: ?[3, 4], %g: ?[4], %b: ?[4]) { %y = skip_layer_norm(%x, %s, %g, %b, %b) : (?, ?, ?, ?) %z = skip_simplified_layer_norm(%x, %s, %g, %b) return %y, %y:3, %z }",
    ),
    (
        "simplified layer normalisation",
        "(%x: ?[2, 3, 4], %g: ?[3, 4]) { %y = simplified_layer_norm(%x, %g) {axis=1} return %y }",
    ),
    (
        "normalised embeddings",
        "(%w: ?[5, 4], %p: ?[3, 4], %s: ?[2, 4], %g: ?[4], %b: ?[4]) { %i = const i32[2, 3] [0, 4, 1, 1, 2, 3] %j = const i32[2, 3] [0, 1, 1, 0, 0, 1] %y = embed_layer_norm(%i, %j, %w, %p, %s, %g, %b) {epsilon=0.1} return %y }",
    ),
    (
        "attention with projections",
        "(%x: ?[1, 3, 2], %w: ?[2, 12], %b: ?[12], %p: ?[2, 1, 2, 2, 2]) { %m = const i32[1, 5] [1, 0, 1, 1, 1] %y = projected_attention(%x, %w, %b, %m, %p) {num_heads=2, unidirectional=true} : (?, ?) return %y, %y:1 }",
    ),
    (
        "attention with biases",
        "(%q: ?[1, 3, 4], %k: ?[1, 2, 4], %v: ?[1, 2, 6], %b: ?[14], %s: ?[1, 2, 3, 2]) { %y = multi_head_attention(%q, %k, %v, %b, _, %s) {num_heads=2} return %y }",
    ),
    (
        "attention of one query",
        "(%q: ?[1, 1, 4], %k: ?[1, 1, 4], %v: ?[1, 1, 4], %p: ?[1, 2, 3, 2], %r: ?[1, 2, 3, 2]) { %n = const i32[1] [2] %y = decoder_attention(%q, %k, %v, _, _, %p, %r, %n) {num_heads=2, past_present_share_buffer=true} return %y }",
    ),
    (
        "attention with grouped heads",
        "(%q: ?[2, 1, 8], %k: ?[2, 1, 4], %v: ?[2, 1, 4], %p: ?[2, 1, 3, 4], %r: ?[2, 1, 3, 4]) { %l = const i32[2] [3, 1] %n = const i32[1] [4] %y = group_query_attention(%q, %k, %v, %p, %r, %l, %n) {num_heads=2, kv_num_heads=1, smooth_softmax=1} : (?, ?, ?) return %y, %y:1, %y:2 }",
    ),
    (
        "rotation from a position on",
        "(%x: ?[1, 2, 4], %c: ?[5, 2], %s: ?[5, 2]) { %i = const i64[1] [2] %y = rotary_embedding_at(%x, %i, %c, %s) return %y }",
    ),
    (
        "mixture of experts",
        "(%x: ?[3, 2], %r: ?[3, 3], %a: ?[3, 4, 2], %b: ?[3, 2, 2], %c: ?[3, 2]) { %y = mixture_of_experts(%x, %r, %a, _, %b, %c) {k=2, activation_type=\"swiglu\", swiglu_fusion=1, normalize_routing_weights=true} return %y }",
    ),
    (
        "crops of images",
        "(%x: ?[1, 2, 4, 4]) { %b = const f64[2, 4] [0.1, 0.2, 0.83, 0.9, 0.3, -0.1, 0.77, 0.6] %r = cast_like(%b, %x) %i = const i32[2] [0, 0] %s = const i32[2] [2, 3] %y = crop_and_resize(%x, %r, %i, %s) return %y }",
    ),
    ("slices of an axis", "(%x: ?[2, 5]) { %y = unfold_tensor(%x) {size=3, step=2} return %y }"),
    ("distances of rows", "(%a: ?[2, 3], %b: ?[4, 3]) { %y = cdist(%a, %b) {metric=\"euclidean\"} return %y }"),
    (
        "scores of tokens",
        "(%s: ?[1, 5]) { %i = const i64[1, 4] [0, 1, 2, 3] %y = ngram_repeat_block(%i, %s) {ngram_size=2} return %y }",
    ),
    (
        "vectors of words",
        "(%w: ?[2, 1, 2, 3], %b: ?[2], %c: ?[4, 3]) { %i = const i32[2, 3] [1, 2, 3, 2, 1, 0] %y = word_conv_embedding(%i, %w, %b, %c) return %y }",
    ),
    (
        "product with weights of four bits",
        "(%x: ?[2, 20], %s: ?[2, 2]) { %b = const u8[2, 2, 8] [18, 52, 86, 120, 154, 188, 222, 240, 1, 35, 69, 103, 137, 171, 205, 239, 17, 34, 51, 68, 85, 102, 119, 136, 153, 170, 187, 204, 221, 238, 255, 16] %y = matmul_nbits(%x, %b, %s) {K=20, N=2, block_size=16} return %y }",
    ),
    (
        "product with weights of a table",
        "(%x: ?[2, 4], %s: ?[1]) { %b = const u8[6] [18, 52, 86, 120, 154, 188] %y = matmul_bnb4(%x, %b, %s) {K=4, N=3, block_size=16, quant_type=1} return %y }",
    ),
    (
        "slices of weights of eight bits",
        "(%s: ?[2, 1]) { %b = const u8[2, 16] [18, 52, 86, 120, 154, 188, 222, 240, 1, 35, 69, 103, 137, 171, 205, 239, 17, 34, 51, 68, 85, 102, 119, 136, 153, 170, 187, 204, 221, 238, 255, 16] %i = const i64[3] [1, 0, 5] %y = gather_block_quantized(%b, %i, %s) {bits=8, block_size=16} return %y }",
    ),
];

/// Cases whose second derivative cannot be had.
pub const ONCE: &[&str] = &["MXNet's loss of sequences", "regions by maxima"];

/// Operators whose gradient is by definition not the slope of their results, and why.
pub const CONVENTIONS: &[(&str, &str)] = &[
    ("mx_box_nms", "boxes that stay pass theirs on; a score that changes the order jumps"),
    ("inverse_with_determinant", "a part of the operators on matrices, whose cases check it"),
    ("solve_triangular", "a part of the operators on matrices, whose cases check it"),
    ("mx_identity_attach_kl_sparse_reg", "adds the gradient of a penalty"),
    ("mx_linalg_potrf", "only symmetric matrices have one: both triangles share what the lower one gets"),
    ("mx_round_ste", "passes through, as if nothing were rounded"),
    ("mx_sign_ste", "passes through"),
    ("mx_element_mask", "the mask is constant"),
    ("mx_index_copy", "every row that is written to one place receives the gradient there, not only the last"),
];
