#!/usr/bin/env python3
"""What ONNX's reference makes of narrow types: codes of numbers, and numbers of codes.

    python3 tests/narrow/make.py      makes results.zip, which tests/tests/narrow.rs reads

It needs the package onnx (1.23), whose conversions are those of ml_dtypes. Numbers are every f16, f32 numbers whose bits are
multiples of an odd number, and in f64 these and powers of 2, a little larger. Results: TYPE.decoded has the f32 of each code;
TYPE.SOURCE.HOW the code of each number. NaN is 7fc00000 in the former; what it becomes in types without one is left to the
test, and so are integers beyond i32, which the processor decides here.
"""
import pathlib, zipfile

import numpy as np
from onnx import TensorProto, numpy_helper
from onnx.reference.ops.op_cast import cast_to

HERE = pathlib.Path(__file__).parent
FLOATS = {
    "f8e4m3fn": TensorProto.FLOAT8E4M3FN,
    "f8e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
    "f8e5m2": TensorProto.FLOAT8E5M2,
    "f8e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
    "f6e2m3": TensorProto.FLOAT6E2M3,
    "f6e3m2": TensorProto.FLOAT6E3M2,
    "f4e2m1": TensorProto.FLOAT4E2M1,
}
INTEGERS = {"i4": TensorProto.INT4, "i2": TensorProto.INT2, "u4": TensorProto.UINT4, "u2": TensorProto.UINT2}
STRIDE = 65521
SOURCES = {
    "f16": np.arange(1 << 16, dtype=np.uint16).view(np.float16),
    "f32": (np.arange((1 << 32) // STRIDE, dtype=np.uint32) * np.uint32(STRIDE)).view(np.float32),
}
SOURCES["f64"] = SOURCES["f32"].astype(np.float64) * (1 + 2.0**-40)
# Only for f8e8m0: the package rounds an f64 just above half of the least number of other types to 0.
SOURCES["powers"] = 2.0 ** np.arange(-127, 127) * (1 + 2.0**-40)


def bits(dtype):
    return {"f6": 6, "f4": 4, "i4": 4, "u4": 4, "i2": 2, "u2": 2}.get(dtype[:2], 8)


def main():
    results = {}
    for name, to in (FLOATS | {"f8e8m0": TensorProto.FLOAT8E8M0}).items():
        narrow = cast_to(np.zeros(1, np.float32), to, True).dtype
        numbers = np.arange(1 << bits(name), dtype=np.uint8).view(narrow).astype(np.float32)
        results[f"{name}.decoded"] = np.where(np.isnan(numbers), np.float32("nan"), numbers)
    for source, numbers in SOURCES.items():
        for name, to in FLOATS.items() if source != "powers" else []:
            for how in ["saturated", "beyond"] if bits(name) == 8 else ["saturated"]:
                codes = cast_to(numbers, to, how == "saturated").view(np.uint8)
                results[f"{name}.{source}.{how}"] = codes if bits(name) == 8 else np.where(np.isnan(numbers), 0, codes)
        for how in ["saturated", "beyond"]:
            for mode in ["up", "down", "nearest"]:
                codes = numpy_helper.to_float8e8m0(numbers, how == "saturated", mode).view(np.uint8)
                results[f"f8e8m0.{source}.{how}.{mode}"] = codes
        whole = np.where(np.abs(numbers.astype(np.float64)) < 2**31, numbers, 0)
        for name, to in INTEGERS.items():
            codes = cast_to(whole, to, True).astype(np.int8 if name[0] == "i" else np.uint8)
            results[f"{name}.{source}.wrapped"] = codes
    path = HERE / "results.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, result in results.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, result.tobytes())
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
