#!/usr/bin/env python3
"""What ONNX Runtime makes of random models, for comparison with tensorc.

    python3 benches/compare_random_models.py MODELS RESULTS [--optimized]

MODELS comes from `onnx_fuzz models`; `onnx_fuzz compare --results RESULTS` compares. The files hold counts and lengths as 32
bits, little-endian, and ONNX messages (tests/onnx_fuzz/src/exchange.rs). Graph optimisations are off, so that every node is
computed as it stands, unless --optimized is given. A process that dies costs one model.
Needs: numpy, onnx and onnxruntime (`python3 -m pip install onnx onnxruntime`).
"""
import os
import struct
import sys

import numpy as np

REFUSED = 0xFFFFFFFF


def models(path):
    """Yields (model, inputs) as bytes."""
    with open(path, "rb") as file:
        data = file.read()
    at = 0

    def number():
        nonlocal at
        value, = struct.unpack_from("<I", data, at)
        at += 4
        return value

    def block():
        nonlocal at
        size = number()
        at += size
        return data[at - size:at]

    while at < len(data):
        model = block()
        yield model, [block() for _ in range(number())]


def refused(text):
    text = text.encode()[:500]
    return struct.pack("<II", REFUSED, len(text)) + text


def answer(model, inputs, optimized):
    import onnx
    import onnxruntime
    from onnx import numpy_helper
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        tensors = [onnx.load_tensor_from_string(t) for t in inputs]
        results = session.run(None, {t.name: numpy_helper.to_array(t) for t in tensors})
        names = [o.name for o in session.get_outputs()]
    except Exception as error:  # Every refusal, at loading or running, is an answer.
        return refused(str(error))
    parts = [struct.pack("<I", len(results))]
    for name, array in zip(names, results):
        message = numpy_helper.from_array(np.ascontiguousarray(array).reshape(np.shape(array)), name).SerializeToString()
        parts.append(struct.pack("<I", len(message)) + message)
    return b"".join(parts)


def work(todo, first, pipe, optimized):
    """Answers models from the first on; each answer goes through the pipe as soon as it is there."""
    with os.fdopen(pipe, "wb") as out:
        for model, inputs in todo[first:]:
            bytes_ = answer(model, inputs, optimized)
            out.write(struct.pack("<I", len(bytes_)) + bytes_)
            out.flush()


def main():
    optimized = "--optimized" in sys.argv
    source, target = [a for a in sys.argv[1:] if not a.startswith("--")]
    todo = list(models(source))
    done = 0
    with open(target, "wb") as out:
        while done < len(todo):
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reading)
                sys.stderr = open(os.devnull, "w")
                work(todo, done, writing, optimized)
                os._exit(0)
            os.close(writing)
            with os.fdopen(reading, "rb") as answers:
                while head := answers.read(4):
                    body = answers.read(struct.unpack("<I", head)[0])
                    out.write(body)
                    done += 1
            _, status = os.waitpid(child, 0)
            if status != 0:
                out.write(refused("died, status %d" % status))
                done += 1
    print("%d models" % done)


if __name__ == "__main__":
    main()
