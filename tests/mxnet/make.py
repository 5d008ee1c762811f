#!/usr/bin/env python3
"""Writes small-symbol.json, small.params and small-values.params with MXNet 1.9.1 (numpy 1.23): a net with
random parameters, and the outputs of a run for inference."""
import os

import numpy as np

for name, kind in (("bool", bool), ("int", int), ("float", float), ("object", object)):
    if name not in np.__dict__:
        setattr(np, name, kind)  # names that MXNet 1.9.1 still uses
os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE"
import mxnet as mx

S = mx.sym
x = S.Convolution(S.Variable("data"), kernel=(3, 3), pad=(1, 1), num_filter=4, name="conv")
x = S.Activation(S.BatchNorm(x, name="bn", fix_gamma=False), act_type="relu")
x = S.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool")
x = S.Dropout(S.FullyConnected(S.Flatten(x), num_hidden=5, name="fc"), p=0.5)
net = S.SoftmaxOutput(x, name="softmax")

rng = np.random.RandomState(0)
shapes, _, states = net.infer_shape(data=(2, 3, 6, 6))
array = lambda shape: mx.nd.array(rng.uniform(0.1, 1, shape) * rng.choice([-1, 1], shape))
args = {n: array(s) for n, s in zip(net.list_arguments(), shapes)}
aux = {n: mx.nd.abs(array(s)) for n, s in zip(net.list_auxiliary_states(), states)}
out = net.bind(mx.cpu(), args, aux_states=aux, grad_req="null").forward(is_train=False)[0]

here = os.path.dirname(os.path.abspath(__file__))
net.save(os.path.join(here, "small-symbol.json"))
given = {n: a for n, a in args.items() if n not in ("data", "softmax_label")}
mx.nd.save(os.path.join(here, "small.params"),
           {**{"arg:" + n: a for n, a in given.items()}, **{"aux:" + n: a for n, a in aux.items()}})
mx.nd.save(os.path.join(here, "small-values.params"), {"data": args["data"], "softmax_output": out})
