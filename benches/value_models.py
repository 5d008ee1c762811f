#!/usr/bin/env python3
"""Writes ONNX models whose shapes depend on values, with random weights, for compare_shapes.py --random.

    python3 benches/value_models.py FOLDER

`detect`: convolutions, boxes kept by NonMaxSuppression, and a network on the features of these. `sparse`: a network on the rows of
a tensor in which something is large, found by NonZero and written back by ScatterND. `unique`: a network on distinct tokens. `topk`:
the `k` of TopK is a sum. Needs onnx and numpy.
"""
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(0)


def weights(*shape, scale=0.1):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def model(name, nodes, inputs, outputs, constants):
    """A node is an operator with its operands, its result or results, and its attributes."""
    made = [helper.make_node(op, operands.split(","), results.split(","), **attributes)
            for op, operands, results, attributes in nodes]
    value = lambda kind, name, shape: helper.make_tensor_value_info(name, kind, shape)
    initial = [numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items()]
    graph = helper.make_graph(made, name, [value(*one) for one in inputs], [value(*one) for one in outputs], initial)
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    whole.ir_version = 9
    onnx.checker.check_model(whole)
    onnx.save(whole, f"{sys.argv[1]}/{name}.onnx")


F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def detect(side=40):
    cells = side * side
    conv = dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    y, x = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    grid = np.stack([y, x, y + 1.5, x + 1.5], -1).reshape(1, cells, 4).astype(np.float32)
    model("detect", [
        ("Conv", "image,w1", "c1", conv), ("Relu", "c1", "r1", {}),
        ("Conv", "r1,w2", "c2", conv), ("Relu", "c2", "features", {}),
        ("Conv", "features,wb", "b4", {}), ("Reshape", "b4,to_boxes", "b", {}),
        ("Transpose", "b", "offsets", dict(perm=[0, 2, 1])), ("Add", "offsets,grid", "boxes", {}),
        ("Conv", "features,ws", "s8", {}), ("Sigmoid", "s8", "s", {}), ("Reshape", "s,to_scores", "scores", {}),
        ("NonMaxSuppression", "boxes,scores,most,iou,least", "selected", {}),
        ("Slice", "selected,two,three,one", "column", {}), ("Reshape", "column,flat", "rows", {}),
        ("Squeeze", "boxes,zero", "all", {}), ("Gather", "all,rows", "kept", dict(axis=0)),
        ("Reshape", "features,to_rows", "columns", {}), ("Transpose", "columns", "pixels", dict(perm=[1, 0])),
        ("Gather", "pixels,rows", "few", dict(axis=0)), ("MatMul", "few,h1", "hidden", {}), ("Relu", "hidden", "h", {}),
        ("MatMul", "h,h2", "logits", {}), ("Softmax", "logits", "classes", dict(axis=-1)),
    ], [(F32, "image", [1, 3, 4 * side, 4 * side])],
        [(F32, "kept", ["k", 4]), (F32, "classes", ["k", 16]), (I64, "selected", ["k", 3])], {
        "w1": weights(64, 3, 3, 3), "w2": weights(64, 64, 3, 3, scale=0.05), "wb": weights(4, 64, 1, 1),
        "ws": weights(8, 64, 1, 1), "h1": weights(64, 256), "h2": weights(256, 16), "grid": grid,
        "to_boxes": [1, 4, cells], "to_scores": [1, 8, cells], "to_rows": [64, cells], "flat": [-1], "zero": [0],
        "one": [1], "two": [2], "three": [3], "most": [100], "iou": np.float32([0.5]), "least": np.float32([0.6]),
    })


def sparse():
    model("sparse", [
        ("ReduceMax", "x,one", "most", dict(keepdims=0)), ("Greater", "most,limit", "large", {}),
        ("NonZero", "large", "found", {}), ("Transpose", "found", "at", dict(perm=[1, 0])),
        ("GatherND", "x,at", "rows", {}), ("MatMul", "rows,a", "p", {}), ("Relu", "p", "r", {}),
        ("MatMul", "r,b", "new", {}), ("ScatterND", "x,at,new", "y", {}),
    ], [(F32, "x", ["n", 128])], [(F32, "y", ["n", 128]), (I64, "found", [1, "k"])],
        {"one": [1], "limit": np.float32(0.99), "a": weights(128, 512), "b": weights(512, 128)})


def unique():
    model("unique", [
        ("Unique", "tokens", "distinct,,back,", dict(sorted=1)), ("Gather", "table,distinct", "e", {}),
        ("MatMul", "e,a", "p", {}), ("Tanh", "p", "t", {}), ("Gather", "t,back", "y", {}),
    ], [(I64, "tokens", ["n"])], [(F32, "y", ["n", 256])],
        {"table": weights(5000, 256, scale=1), "a": weights(256, 256)})


def topk():
    model("topk", [
        ("Abs", "mask", "m", {}), ("ReduceSum", "m", "sum", dict(keepdims=0)), ("Cast", "sum", "count", dict(to=I64)),
        ("Reshape", "count,one", "k", {}), ("TopK", "x,k", "best,at", dict(axis=1)),
        ("Softmax", "best", "p", dict(axis=1)),
    ], [(F32, "x", [8, 2000]), (F32, "mask", [300])], [(F32, "p", [8, "k"]), (I64, "at", [8, "k"])], {"one": [1]})


for make in (detect, sparse, unique, topk):
    make()
