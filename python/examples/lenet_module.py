"""LeNet on digits with a symbol and `Module.fit`: a script for MXNet, in which the import is another."""

import logging

import digits
import numpy as np

import tensorc as mx

logging.basicConfig(level=logging.INFO, format="%(message)s")
mx.random.seed(1)
np.random.seed(1)
(images, labels), (held_out, held_out_labels) = digits.load()
batch_size = 64
train_iter = mx.io.NDArrayIter(images, labels, batch_size, shuffle=True)
val_iter = mx.io.NDArrayIter(held_out, held_out_labels, batch_size)

data = mx.sym.var("data")
conv1 = mx.sym.Convolution(data=data, kernel=(5, 5), num_filter=20)
tanh1 = mx.sym.Activation(data=conv1, act_type="tanh")
pool1 = mx.sym.Pooling(data=tanh1, pool_type="max", kernel=(2, 2), stride=(2, 2))
conv2 = mx.sym.Convolution(data=pool1, kernel=(5, 5), num_filter=50)
tanh2 = mx.sym.Activation(data=conv2, act_type="tanh")
pool2 = mx.sym.Pooling(data=tanh2, pool_type="max", kernel=(2, 2), stride=(2, 2))
flatten = mx.sym.flatten(data=pool2)
fc1 = mx.sym.FullyConnected(data=flatten, num_hidden=500)
tanh3 = mx.sym.Activation(data=fc1, act_type="tanh")
fc2 = mx.sym.FullyConnected(data=tanh3, num_hidden=10)
lenet = mx.sym.SoftmaxOutput(data=fc2, name="softmax")

lenet_model = mx.mod.Module(symbol=lenet, context=mx.cpu())
lenet_model.fit(
    train_iter,
    eval_data=val_iter,
    optimizer="sgd",
    optimizer_params={"learning_rate": 0.1},
    initializer=mx.init.Xavier(),
    eval_metric="acc",
    batch_end_callback=mx.callback.Speedometer(batch_size, 10),
    num_epoch=5,
)

prob = lenet_model.predict(mx.io.NDArrayIter(held_out, None, batch_size))
assert prob.shape == (len(held_out), 10)
acc = mx.metric.Accuracy()
lenet_model.score(val_iter, acc)
print(f"accuracy {acc.get()[1]:.3f}")
assert acc.get()[1] > 0.87
