"""Networks for examples of several lengths."""

import numpy as np
import pytest

import tensorc as mx


def mean_of_words(length):
    """Classifies by the mean of the vectors of so many words."""
    data = mx.sym.var("data")
    words = mx.sym.Embedding(data, input_dim=6, output_dim=4, name="embed")
    net = mx.sym.FullyConnected(mx.sym.mean(words, axis=1), num_hidden=2, name="fc")
    return mx.sym.SoftmaxOutput(net, name="softmax"), ("data",), ("softmax_label",)


class Sentences(mx.io.DataIter):
    """Batches of several lengths; the label says whether most words are below 3."""

    def __init__(self, lengths=(3, 5, 7), batch_size=8, batches=12):
        super().__init__(batch_size)
        rng, self.default_bucket_key = np.random.default_rng(0), max(lengths)
        self.batches = []
        for at in range(batches):
            words = rng.integers(0, 6, (batch_size, lengths[at % len(lengths)])).astype(np.float32)
            self.batches.append((words, ((words < 3).mean(1) > 0.5).astype(np.float32)))
        self.reset()

    @property
    def provide_data(self):
        return [mx.io.DataDesc("data", (self.batch_size, self.default_bucket_key))]

    @property
    def provide_label(self):
        return [mx.io.DataDesc("softmax_label", (self.batch_size,))]

    def reset(self):
        self.left = list(self.batches)

    def next(self):
        if not self.left:
            raise StopIteration
        words, labels = self.left.pop(0)
        descs = [mx.io.DataDesc("data", words.shape)], [mx.io.DataDesc("softmax_label", labels.shape)]
        arrays = [mx.nd.array(words)], [mx.nd.array(labels)]
        return mx.io.DataBatch(*arrays, pad=0, bucket_key=words.shape[1], provide_data=descs[0], provide_label=descs[1])


def test_all_lengths_learn_together(tmp_path):
    train = Sentences()
    module = mx.mod.BucketingModule(mean_of_words, default_bucket_key=train.default_bucket_key)
    module.fit(train, optimizer_params={"learning_rate": 0.5}, initializer=mx.init.Xavier(), num_epoch=30)
    assert dict(module.score(train, "acc"))["accuracy"] > 0.95
    # One set of parameters: a network of its own for a length agrees.
    arguments, states = module.get_params()
    train.reset()
    batch = train.next()
    module.forward(batch, is_train=False)
    assert module.data_shapes[0].shape == (8, 3) and module.output_names == ["softmax_output"]
    single = mx.mod.Module(mean_of_words(3)[0])
    single.bind([("data", (8, 3))], [("softmax_label", (8,))], for_training=False)
    single.set_params(arguments, states)
    single.forward(batch, is_train=False)
    np.testing.assert_array_equal(module.get_outputs()[0].asnumpy(), single.get_outputs()[0].asnumpy())
    prefix = str(tmp_path / "net")
    module.save_checkpoint(prefix, 3)
    loaded = mx.mod.BucketingModule.load(prefix, 3, mean_of_words, 7)
    loaded.bind(train.provide_data, train.provide_label, for_training=False)
    assert dict(loaded.score(train, "acc")) == dict(module.score(train, "acc"))


def test_steps_by_hand_are_those_of_fit():
    found = []
    for by_hand in (False, True):
        mx.random.seed(1)
        train = Sentences(batches=6)
        module = mx.mod.BucketingModule(mean_of_words, 7)
        settings = {"optimizer_params": {"learning_rate": 0.5, "momentum": 0.9}}
        if by_hand:
            module.bind(train.provide_data, train.provide_label)
            module.init_params(mx.init.One())
            module.init_optimizer(**settings)
            for batch in train:
                module.prepare(batch)
                module.forward_backward(batch)
                module.update()
        else:
            module.fit(train, initializer=mx.init.One(), num_epoch=1, **settings)
        found.append(module.get_params()[0]["fc_weight"].asnumpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    assert not np.allclose(found[0], 1)


def test_wrong_use():
    with pytest.raises(ValueError, match="default_bucket_key"):
        mx.mod.BucketingModule(mean_of_words)

    def larger(length):
        symbol, data, labels = mean_of_words(length)
        return (symbol if length == 7 else mx.sym.FullyConnected(symbol, num_hidden=2, name="more")), data, labels

    module = mx.mod.BucketingModule(larger, 7)
    batch = Sentences().next()
    with pytest.raises(mx.MXNetError, match="call `bind`"):
        module.forward(batch)
    module.bind([("data", (8, 7))], [("softmax_label", (8,))])
    with pytest.raises(
        mx.MXNetError, match="bucket `3` has parameters that the default one lacks: more_bias, more_weight"
    ):
        module.forward(batch)
