#!/usr/bin/env python3
"""Packs a folder of operator cases of MXNet into one file of arrays.

usage: pack_operators.py FOLDER OUT.npz

A case is a folder with model-symbol.json, set_0/inputs.npz, set_0/expected.npz (outputs in inference) and, where
MXNet has them, model.params, train_expected.npz (outputs in training, and aux:NAME) and grads.npz (the gradient
of the sum of the outputs by variable). In the pack the members are CASE/symbol (text as bytes), CASE/input/NAME,
CASE/param/NAME (arg:NAME or aux:NAME), CASE/expected/NAME, CASE/train/NAME and CASE/grad/NAME.
Needs mxnet 1.9.1 to read .params.
"""
import io, os, sys, zipfile

import numpy as np

for _n, _t in (("bool", bool), ("int", int), ("float", float), ("object", object)):
    if _n not in np.__dict__:
        setattr(np, _n, _t)  # names that mxnet 1.9.1 still uses
import mxnet as mx


def main(folder, out):
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as pack:
        def put(name, array):
            data = io.BytesIO()
            np.lib.format.write_array(data, np.ascontiguousarray(array).reshape(np.shape(array)), version=(1, 0))
            pack.writestr(zipfile.ZipInfo(name + ".npy", (1980, 1, 1, 0, 0, 0)), data.getvalue(), zipfile.ZIP_DEFLATED, 9)

        for case in sorted(os.listdir(folder)):
            path = lambda *parts: os.path.join(folder, case, *parts)
            with open(path("model-symbol.json"), "rb") as f:
                put(case + "/symbol", np.frombuffer(f.read(), np.uint8))
            for kind, file in (("input", path("set_0", "inputs.npz")), ("expected", path("set_0", "expected.npz")), ("train", path("train_expected.npz")), ("grad", path("grads.npz"))):
                if os.path.exists(file):
                    arrays = np.load(file)
                    for name in arrays.files:
                        put(f"{case}/{kind}/{name}", arrays[name])
            if os.path.exists(path("model.params")):
                for name, array in mx.nd.load(path("model.params")).items():
                    put(f"{case}/param/{name}", array.asnumpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
