#!/usr/bin/env python3
"""Writes the symbol files beside it with MXNet 1.9.1 (numpy 1.23): the nets of ../../symbol_json.rs."""
import os

import numpy as np

for name, kind in (("bool", bool), ("int", int), ("float", float), ("object", object)):
    if name not in np.__dict__:
        setattr(np, name, kind)  # names that MXNet 1.9.1 still uses
import mxnet as mx

S, V = mx.sym, mx.sym.Variable


def residual():
    x = V("data", shape=(0, 3, 8, 8))
    y = S.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=3, no_bias=True, name="conv")
    y = S.Activation(S.BatchNorm(y, fix_gamma=False, eps=2e-5, name="bn"), act_type="relu")
    y = S.Pooling(y + x, global_pool=True, kernel=(7, 7), pool_type="avg")
    y = S.FullyConnected(S.Flatten(y), num_hidden=10, name="fc")
    return S.SoftmaxOutput(y, name="softmax")


def attributes():
    with mx.AttrScope(ctx_group="dev1", __mood__="odd"):
        w = V("w", lr_mult=2, wd_mult=0.5, dtype="float16", init=mx.init.Zero(), stype="row_sparse")
        x = S.FullyConnected(V("x", shape=(2, 0)), weight=w, num_hidden=3, no_bias=True, name="fc", lr_mult=1)
    return S.LeakyReLU(x, act_type="prelu", attr={"__quote__": 'a "b"\\c\n\td'})


def lists():
    parts = S.SliceChannel(V("x"), num_outputs=12, name="cut")
    joined = S.Concat(*[p for p in parts], dim=1, name="join")
    drop = S.Dropout(joined, p=0.25)
    return S.Group([drop, parts[3], S.add_n(parts[0], parts[1], parts[2]), 1 - joined, joined / 2.5, drop * drop])


def shared_state():
    x, mean, var = V("x"), V("mean"), V("var")
    a = S.BatchNorm(x, moving_mean=mean, moving_var=var, name="a")
    b = S.BatchNorm(a, moving_mean=mean, moving_var=var, name="b")
    return S.Group([b, mean * 1])


for net in (residual, attributes, lists, shared_state):
    with mx.name.NameManager():
        text = net().tojson()
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), net.__name__ + ".json"), "w") as f:
        f.write(text)
