"""ONNX models as bytes, written without the package `onnx`."""

import struct

import numpy as np

FLOAT, UINT8, INT8, INT32, INT64, STRING, BOOL, FLOAT16, DOUBLE, BFLOAT16 = 1, 2, 3, 6, 7, 8, 9, 10, 11, 16
_TYPES = {
    "float32": FLOAT,
    "uint8": UINT8,
    "int8": INT8,
    "int32": INT32,
    "int64": INT64,
    "bool": BOOL,
    "float16": FLOAT16,
    "float64": DOUBLE,
}


def _varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(tag, value):
    """A field: a number, a text, or bytes of a message."""
    if isinstance(value, int):
        return _varint(tag << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(tag << 3 | 5) + struct.pack("<f", value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(tag << 3 | 2) + _varint(len(data)) + data


def _message(*fields):
    return b"".join(_field(tag, value) for tag, value in fields)


def tensor(array, name=""):
    array = np.asarray(array)
    dims = [(1, extent) for extent in array.shape]
    return _message(*dims, (2, _TYPES[array.dtype.name]), (8, name), (9, array.tobytes()))


def tensor_type(element, shape):
    if shape is None:
        return _message((1, _message((1, element))))
    dims = [(1, _message((1, d) if isinstance(d, int) else (2, d)) if d is not None else b"") for d in shape]
    return _message((1, _message((1, element), (2, _message(*dims)))))


def value(name, element, shape):
    return _message((1, name), (2, tensor_type(element, shape)))


def sequence(name, element, shape):
    return _message((1, name), (2, _message((4, _message((1, tensor_type(element, shape)))))))


def map_type(key, element):
    return _message((5, _message((1, key), (2, tensor_type(element, None)))))


def map_value(name, key, element):
    return _message((1, name), (2, map_type(key, element)))


def maps_value(name, key, element):
    """A sequence of maps."""
    return _message((1, name), (2, _message((4, _message((1, map_type(key, element)))))))


def _attribute(name, given):
    if isinstance(given, bool) or isinstance(given, int):
        return _message((1, name), (3, int(given)), (20, 2))
    if isinstance(given, float):
        return _message((1, name), (2, given), (20, 1))
    if isinstance(given, str):
        return _message((1, name), (4, given), (20, 3))
    if isinstance(given, bytes):
        return _message((1, name), (6, given), (20, 5))
    if given and all(isinstance(text, str) for text in given):
        return _message((1, name), *[(9, text) for text in given], (20, 8))
    return _message((1, name), *[(8, int(number)) for number in given], (20, 7))


def node(op, inputs, outputs, name="", domain="", **attributes):
    given = [(5, _attribute(key, number)) for key, number in attributes.items()]
    ends = [(1, name_) for name_ in inputs] + [(2, name_) for name_ in outputs]
    return _message(*ends, (3, name), (4, op), *given, (7, domain))


def graph(nodes, inputs, outputs, initializers=(), name="g"):
    return _message(
        *[(1, n) for n in nodes],
        (2, name),
        *[(5, t) for t in initializers],
        *[(11, i) for i in inputs],
        *[(12, o) for o in outputs],
    )


def model(nodes, inputs, outputs, initializers=(), opset=17, metadata=(), domains=()):
    others = [(8, _message((1, domain), (2, version))) for domain, version in domains]
    whole = graph(nodes, inputs, outputs, initializers)
    entries = [(14, _message((1, key), (2, text))) for key, text in metadata]
    return _message((1, 8), (2, "test"), (5, 3), (7, whole), (8, _message((2, opset))), *others, *entries)


def unary(op="Relu", element=FLOAT, shape=("n", 3), name="act"):
    """A model of one operator from `x` to `y`."""
    return model([node(op, ["x"], ["y"], name)], [value("x", element, shape)], [value("y", element, shape)])
