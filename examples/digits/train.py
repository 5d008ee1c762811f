"""Trains the digit classifier of this folder and writes its files.

    pip install torch scikit-learn onnx numpy
    python examples/digits/train.py

Data: the 1797 handwritten digits of 8x8 pixels that scikit-learn ships (the test part of the UCI
"Optical Recognition of Handwritten Digits" set). The first 1437 train; the last 360, in file order,
are held out and touched only to measure. Writes, next to this file:

    digits.onnx   the model; inputs: image f32[batch,1,8,8] with grey values 0..16
                  outputs: digit i64[batch], probabilities f32[batch,10]
    samples.npz   `image`: eight held-out images, whose labels are 3 1 4 1 5 9 2 6
    samples.png   the same, enlarged
    held_out.npz  `image`: all 360 held-out images
    labels.npz    `label`: what they show
"""

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from torch import nn

HERE = Path(__file__).parent
HELD_OUT = 360
EPOCHS = 40
BATCH = 32
SAMPLE_LABELS = [3, 1, 4, 1, 5, 9, 2, 6]


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def shifted(x: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """Each image moved by up to one pixel either way; what comes in is background."""
    padded = nn.functional.pad(x, (1, 1, 1, 1))
    moves = torch.randint(0, 3, (len(x), 2), generator=rng).tolist()
    return torch.stack([padded[i, :, r : r + 8, c : c + 8] for i, (r, c) in enumerate(moves)])


def train(x: torch.Tensor, y: torch.Tensor) -> nn.Sequential:
    rng = torch.Generator().manual_seed(0)
    model = network()
    steps = EPOCHS * (-(-len(x) // BATCH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x), generator=rng).split(BATCH):
            loss = nn.functional.cross_entropy(model(shifted(x[batch], rng)), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def to_onnx(model: nn.Sequential) -> onnx.ModelProto:
    weights, nodes = [], []

    def weight(name: str, value: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(op: str, inputs: list[str], output: str, **attributes) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    x = node("Div", ["image", weight("white", np.float32(16))], "scaled")
    count = {}
    for layer in model:
        kind = type(layer).__name__.lower().removesuffix("2d")
        count[kind] = count.get(kind, 0) + 1
        name = f"{kind}{count[kind]}"
        if isinstance(layer, nn.Conv2d):
            w = [weight(f"{name}.{p}", t.detach().numpy()) for p, t in layer.named_parameters()]
            x = node("Conv", [x, *w], name, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        elif isinstance(layer, nn.Linear):
            w = [weight(f"{name}.{p}", t.detach().numpy()) for p, t in layer.named_parameters()]
            x = node("Gemm", [x, *w], name, transB=1)
        elif isinstance(layer, nn.ReLU):
            x = node("Relu", [x], name)
        elif isinstance(layer, nn.MaxPool2d):
            x = node("MaxPool", [x], name, kernel_shape=[2, 2], strides=[2, 2])
        elif isinstance(layer, nn.Flatten):
            x = node("Flatten", [x], name)
    node("Softmax", [x], "probabilities", axis=1)
    node("ArgMax", ["probabilities"], "digit", axis=1, keepdims=0)

    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [
            helper.make_tensor_value_info("digit", TensorProto.INT64, ["batch"]),
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10]),
        ],
        weights,
    )
    result = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(result, full_check=True)
    return result


def write_png(path: Path, images: np.ndarray, zoom: int = 12, gap: int = 1) -> None:
    """The images side by side as grey PNG, dark ink on white."""
    import struct
    import zlib

    ink = np.pad(images[:, 0], ((0, 0), (gap, gap), (gap, gap)))
    row = np.concatenate(list(ink), axis=1).repeat(zoom, 0).repeat(zoom, 1)
    grey = (255 - row * (255 / 16)).round().astype(np.uint8)
    lines = b"".join(b"\0" + line.tobytes() for line in grey)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", grey.shape[1], grey.shape[0], 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = load_digits()
    images = data.images.astype(np.float32)[:, None]
    labels = data.target.astype(np.int64)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)

    model = train(x[:-HELD_OUT] / 16, y[:-HELD_OUT])
    with torch.no_grad():
        right = model(x / 16).argmax(1) == y
    print(f"training images: {right[:-HELD_OUT].sum()} of {len(y) - HELD_OUT} right")
    print(f"held-out images: {right[-HELD_OUT:].sum()} of {HELD_OUT} right")

    onnx.save(to_onnx(model), HERE / "digits.onnx")
    held_images, held_labels = images[-HELD_OUT:], labels[-HELD_OUT:]
    np.savez_compressed(HERE / "held_out.npz", image=held_images)
    np.savez_compressed(HERE / "labels.npz", label=held_labels)
    # The first held-out image of each wanted label, then the second, and so on: not picked by result.
    taken = []
    for digit in SAMPLE_LABELS:
        taken.append(next(i for i in np.flatnonzero(held_labels == digit) if i not in taken))
    np.savez(HERE / "samples.npz", image=held_images[taken])
    write_png(HERE / "samples.png", held_images[taken])
    print(f"samples: held-out images {[int(i) for i in taken]}")


if __name__ == "__main__":
    main()
