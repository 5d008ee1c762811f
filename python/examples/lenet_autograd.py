"""LeNet on digits with arrays, recorded calls and updates in place: a script for MXNet, in which the import is another."""

import digits
import numpy as np

import tensorc as mx
from tensorc import autograd, nd

mx.random.seed(1)
(images, labels), (held_out, held_out_labels) = digits.load()
ctx = mx.cpu()
scale = 0.05
batch_size = 64
num_outputs = 10

W1 = nd.random_normal(shape=(20, 1, 5, 5), scale=scale, ctx=ctx)
b1 = nd.zeros(20, ctx=ctx)
W2 = nd.random_normal(shape=(50, 20, 5, 5), scale=scale, ctx=ctx)
b2 = nd.zeros(50, ctx=ctx)
W3 = nd.random_normal(shape=(800, 128), scale=scale, ctx=ctx)
b3 = nd.zeros(128, ctx=ctx)
W4 = nd.random_normal(shape=(128, num_outputs), scale=scale, ctx=ctx)
b4 = nd.zeros(num_outputs, ctx=ctx)
params = [W1, b1, W2, b2, W3, b3, W4, b4]
for param in params:
    param.attach_grad()


def relu(x):
    return nd.maximum(x, nd.zeros_like(x))


def net(x):
    h1 = relu(nd.Convolution(data=x, weight=W1, bias=b1, kernel=(5, 5), num_filter=20))
    h1 = nd.Pooling(data=h1, pool_type="max", kernel=(2, 2), stride=(2, 2))
    h2 = relu(nd.Convolution(data=h1, weight=W2, bias=b2, kernel=(5, 5), num_filter=50))
    h2 = nd.Pooling(data=h2, pool_type="max", kernel=(2, 2), stride=(2, 2))
    h3 = relu(nd.dot(nd.flatten(h2), W3) + b3)
    return nd.dot(h3, W4) + b4


def softmax_cross_entropy(yhat_linear, y):
    return -nd.nansum(y * nd.log_softmax(yhat_linear), axis=0, exclude=True)


def SGD(params, lr):
    for param in params:
        param[:] = param - lr * param.grad


def evaluate_accuracy(images, labels):
    predictions = nd.argmax(net(nd.array(images, ctx=ctx)), axis=1)
    return nd.mean(predictions == nd.array(labels, ctx=ctx)).asscalar()


learning_rate = 0.03
for epoch in range(12):
    cumulative_loss = 0
    order = np.random.default_rng(epoch).permutation(len(labels))
    for begin in range(0, len(labels), batch_size):
        at = order[begin : begin + batch_size]
        data = nd.array(images[at], ctx=ctx)
        label_one_hot = nd.one_hot(nd.array(labels[at], ctx=ctx), num_outputs)
        with autograd.record():
            output = net(data)
            loss = softmax_cross_entropy(output, label_one_hot)
        loss.backward()
        SGD(params, learning_rate / len(at))
        cumulative_loss += nd.sum(loss).asscalar()
    accuracy = evaluate_accuracy(held_out, held_out_labels)
    print(f"epoch {epoch}: loss {cumulative_loss / len(labels):.4f}, accuracy {accuracy:.3f}")
assert accuracy > 0.87
