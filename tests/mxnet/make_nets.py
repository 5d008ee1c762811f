#!/usr/bin/env python3
"""Writes nets.json with MXNet 1.9.1 (numpy 1.23): of networks of its model zoo, the shapes of arguments and
auxiliary states for a batch of two, and how often each operator occurs."""
import json
import os
from collections import Counter

import numpy as np

for name, kind in (("bool", bool), ("int", int), ("float", float), ("object", object)):
    if name not in np.__dict__:
        setattr(np, name, kind)  # names that MXNet 1.9.1 still uses
import mxnet as mx
from mxnet.gluon.model_zoo import vision

ZOO = {"resnet50": "resnet50_v1", "vgg16": "vgg16", "squeezenet1.0": "squeezenet1.0", "mobilenet1.0": "mobilenet1.0",
       "densenet121": "densenet121", "inception-v3": "inceptionv3", "alexnet": "alexnet"}
nets = {}
for ours, theirs in ZOO.items():
    extent = 299 if ours == "inception-v3" else 224
    net = vision.get_model(theirs)(mx.sym.var("data"))
    arguments, _, auxiliary = net.infer_shape(data=(2, 3, extent, extent))
    ops = Counter(n["op"] for n in json.loads(net.tojson())["nodes"] if n["op"] != "null")
    nets[ours] = {"arguments": arguments, "auxiliary": auxiliary, "operators": dict(sorted(ops.items()))}
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nets.json")
with open(path, "w") as f:
    f.write("{\n" + ",\n".join(f'"{n}": {json.dumps(v, separators=(",", ":"))}' for n, v in nets.items()) + "\n}\n")
