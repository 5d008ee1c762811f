#!/usr/bin/env python3
"""ONNX's own cases of the newest IR version, with the results of its reference.

    python3 tests/newest/make.py      makes cases.zip, which tests/tests/newest.rs runs

It needs the package onnx (1.23). Cases are left out whose tensors have element types that tensorc does not have, or which take
sequences or texts.
"""
import pathlib, zipfile

import numpy as np
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases

HERE = pathlib.Path(__file__).parent
IR_VERSION = 14
TYPES = {
    getattr(TensorProto, name)
    for name in """FLOAT DOUBLE FLOAT16 BFLOAT16 INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 BOOL FLOAT8E4M3FN FLOAT8E4M3FNUZ
    FLOAT8E5M2 FLOAT8E5M2FNUZ FLOAT8E8M0 FLOAT6E2M3 FLOAT6E3M2 FLOAT4E2M1 INT4 INT2 UINT4 UINT2""".split()
}


def proto(value):
    """A tensor of a case; `None` if it is none of the types."""
    tensor = numpy_helper.from_array(value) if isinstance(value, (np.ndarray, np.generic)) else value
    return tensor if isinstance(tensor, TensorProto) and tensor.data_type in TYPES else None


def main():
    path = HERE / "cases.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for case in sorted(collect_testcases(None), key=lambda case: case.name):
            if case.model is None or case.model.ir_version < IR_VERSION:
                continue
            if any(not info.type.HasField("tensor_type") for info in case.model.graph.input):
                continue
            inputs, outputs = ([proto(value) for value in values] for values in case.data_sets[0])
            if None in inputs + outputs:
                continue
            files = {"model.onnx": case.model}
            files |= {f"input_{i}.pb": tensor for i, tensor in enumerate(inputs)}
            files |= {f"output_{i}.pb": tensor for i, tensor in enumerate(outputs)}
            for file, message in files.items():
                entry = zipfile.ZipInfo(f"{case.name}/{file}", (1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, message.SerializeToString())
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
