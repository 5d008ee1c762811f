#!/usr/bin/env python3
"""Writes reference.json: what MXNet 1.9.1 computes for schedules, optimizers and metrics; and
parity-NAME: short training runs on digits, to be repeated step by step.

  python make_reference.py      needs mxnet==1.9.1 and numpy==1.23.5
"""
import json, os, warnings

warnings.filterwarnings("ignore")
os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE"
import numpy as np

for n, t in (("bool", bool), ("int", int), ("float", float), ("object", object)):
    if n not in np.__dict__:
        setattr(np, n, t)
import mxnet as mx

S = mx.lr_scheduler
UPDATES = [0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 15, 19, 20, 21, 30, 40, 60]


def schedules():
    cases = [
        ("factor", S.FactorScheduler(5, 0.5, 0.02, 0.3)),
        ("factor", S.FactorScheduler(3, 0.9, base_lr=0.3, warmup_steps=6, warmup_begin_lr=0.1)),
        ("multi_factor", S.MultiFactorScheduler([4, 10, 20], 0.1, 0.3)),
        ("multi_factor", S.MultiFactorScheduler([4, 10], 0.5, 0.3, 5, 0.05, "constant")),
        ("poly", S.PolyScheduler(20, 0.3, 2, 0.01)),
        ("poly", S.PolyScheduler(20, 0.3, 1, 0, 5, 0.1)),
        ("cosine", S.CosineScheduler(20, 0.3, 0.01)),
        ("cosine", S.CosineScheduler(30, 0.3, 0, 10, 0.05, "linear")),
    ]
    out = []
    for kind, s in cases:
        decay = {"kind": kind}
        if kind == "factor":
            decay.update(step=s.step, factor=s.factor, stop=s.stop_factor_lr)
        elif kind == "multi_factor":
            decay.update(steps=s.step, factor=s.factor)
        else:
            decay.update(max_update=s.max_update, final_rate=float(s.final_lr))
            if kind == "poly":
                decay.update(power=float(s.power))
        warm = {"steps": s.warmup_steps, "begin_rate": float(s.warmup_begin_lr), "mode": s.warmup_mode} if s.warmup_steps else None
        config = {"base_rate": 0.3, "decay": decay, "warm_up": warm}
        out.append({"schedule": config, "updates": UPDATES, "rates": [float(s(u)) for u in UPDATES]})
    return out


def optimizers():
    base = {"learning_rate": 0.05, "wd": 0.02, "rescale_grad": 0.5}
    clip = dict(base, clip_gradient=0.4)
    cases = [
        ("sgd", base), ("sgd", dict(clip, momentum=0.9)), ("nag", dict(base, momentum=0.9)), ("nag", clip),
        ("adam", base), ("adam", dict(clip, beta1=0.8)), ("rmsprop", dict(base, gamma1=0.95)),
        ("rmsprop", dict(clip, centered=True)), ("rmsprop", dict(base, clip_weights=0.5)),
        ("adagrad", base), ("adagrad", dict(clip, eps=1e-3)), ("ftrl", dict(base, lamda1=0.03)), ("ftrl", clip),
        ("ftml", base), ("ftml", clip), ("signum", base), ("signum", dict(clip, momentum=0.0)),
        ("signum", dict(base, wd_lh=0.1)), ("lamb", base), ("lamb", dict(clip, lower_bound=0.5, upper_bound=1.0)),
        ("lamb", dict(base, bias_correction=False)),
    ]
    r = np.random.RandomState(5)
    w0 = {"fc_weight": r.uniform(-1, 1, (2, 3)).astype("f"), "fc_bias": r.uniform(-1, 1, (3,)).astype("f")}
    grads = [{k: r.normal(0, 1, v.shape).astype("f") for k, v in w0.items()} for _ in range(5)]
    out = []
    for name, settings in cases:
        o = mx.optimizer.create(name, param_idx2name=dict(enumerate(w0)), **settings)
        o.aggregate_num = 0
        up = mx.optimizer.get_updater(o)
        w = {k: mx.nd.array(v) for k, v in w0.items()}
        steps = []
        for g in grads:
            for i, k in enumerate(w):
                up(i, mx.nd.array(g[k]), w[k])
            steps.append({k: flat(v.asnumpy()) for k, v in w.items()})
        out.append({"name": name, "settings": settings, "steps": steps})
    return {"weights": {k: flat(v) for k, v in w0.items()}, "gradients": [{k: flat(v) for k, v in g.items()} for g in grads], "cases": out}


def flat(a):
    return [float(x) for x in np.asarray(a).ravel()]


def tensor(a):
    return {"dims": list(a.shape), "values": flat(a)}


def metrics():
    r = np.random.RandomState(9)
    soft = lambda *s: (lambda e: (e / e.sum(1, keepdims=True)).astype("f"))(np.exp(r.normal(0, 1, s)))
    batches = lambda label, pred, n=3: [(label(), pred()) for _ in range(n)]
    ten = batches(lambda: r.randint(0, 5, 8).astype("f"), lambda: soft(8, 5))
    two = batches(lambda: r.randint(0, 2, 9).astype("f"), lambda: soft(9, 2))
    image = batches(lambda: r.randint(0, 3, (2, 4, 4)).astype("f"), lambda: soft(2, 3, 4, 4))
    real = batches(lambda: r.normal(0, 1, 6).astype("f"), lambda: r.normal(0, 1, (6, 1)).astype("f"))
    wide = batches(lambda: r.normal(0, 1, (4, 3)).astype("f"), lambda: r.normal(0, 1, (4, 3)).astype("f"))
    M = mx.metric
    cases = [
        ("acc", M.Accuracy(), ten), ("acc", M.Accuracy(), image), ("top_k_acc_2", M.TopKAccuracy(2), ten),
        ("f1", M.F1(), two), ("mcc", M.MCC(), two), ("f1 micro", M.F1(average="micro"), two),
        ("mcc micro", M.MCC(average="micro"), two), ("pcc", M.PCC(), ten),
        ("perplexity", M.Perplexity(None), ten), ("perplexity ignore", M.Perplexity(2), ten), ("ce", M.CrossEntropy(), ten),
        ("nll_loss", M.NegativeLogLikelihood(), ten), ("mae", M.MAE(), real), ("mae", M.MAE(), wide), ("mse", M.MSE(), wide),
        ("rmse", M.RMSE(), wide), ("pearsonr", M.PearsonCorrelation(), wide),
        ("pearsonr micro", M.PearsonCorrelation(average="micro"), wide), ("loss", M.Loss(), wide),
    ]
    out = []
    for name, m, data in cases:
        values = []
        for label, pred in data:
            m.update([mx.nd.array(label)], [mx.nd.array(pred)])
            values.append(float(m.get()[1]))
        out.append({"name": name, "reported": m.name, "values": values, "batches": [{"label": tensor(l), "output": tensor(p)} for l, p in data]})
    return out


def network(kind):
    x = mx.sym.Variable("data")
    if kind == "conv":
        x = mx.sym.Convolution(x, kernel=(3, 3), num_filter=6, name="conv1")
        x = mx.sym.BatchNorm(x, fix_gamma=False, eps=1e-3, name="bn1")
        x = mx.sym.Pooling(mx.sym.Activation(x, act_type="relu"), kernel=(2, 2), stride=(2, 2), pool_type="max")
        x = mx.sym.Flatten(x)
    else:
        x = mx.sym.Activation(mx.sym.FullyConnected(x, num_hidden=24, name="fc1"), act_type="tanh")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=10, name="fc2"), name="softmax")


def parity(name, kind, batches, optimizer, settings):
    folder = os.path.join(here, "parity-" + name)
    os.makedirs(folder, exist_ok=True)
    net, batch = network(kind), batches[0][0].shape[0]
    mx.random.seed(4)
    module = mx.mod.Module(net)
    module.bind([("data", batches[0][0].shape)], [("softmax_label", (batch,))])
    module.init_params(mx.init.Xavier())
    net.save(os.path.join(folder, "model-symbol.json"))
    module.save_params(os.path.join(folder, "init.params"))
    module.init_optimizer(optimizer=optimizer, optimizer_params=dict(settings, rescale_grad=1.0 / batch))
    losses = []
    for x, y in batches:
        module.forward_backward(mx.io.DataBatch([mx.nd.array(x)], [mx.nd.array(y)]))
        p = module.get_outputs()[0].asnumpy()
        losses.append(float(-np.log(np.maximum(p[np.arange(batch), y.astype(int)], 1e-12)).mean()))
        module.update()
    module.save_params(os.path.join(folder, "final.params"))
    np.savez_compressed(os.path.join(folder, "batches.npz"), **{f"data_{i}": b[0] for i, b in enumerate(batches)}, **{f"label_{i}": b[1] for i, b in enumerate(batches)})
    np.savez(os.path.join(folder, "losses.npz"), losses=np.array(losses))
    config = {"optimizer": optimizer, "settings": settings, "rescale_grad": 1.0 / batch, "steps": len(batches), "label": "softmax_label"}
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=1)


here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "reference.json"), "w") as f:
    json.dump({"schedules": schedules(), "optimizers": optimizers(), "metrics": metrics()}, f, separators=(",", ":"))
digits = np.load(os.path.join(here, os.pardir, os.pardir, "examples", "digits", "all.npz"))
pixels, labels = (digits["x"].astype("f") - 8) / 8, digits["y"].astype("f")
batches = lambda shape, n, size: [(pixels[i * size:][:size].reshape((size,) + shape), labels[i * size:][:size]) for i in range(n)]
parity("mlp-adam", "mlp", batches((64,), 12, 16), "adam", {"learning_rate": 0.01, "wd": 0.001})
parity("conv-momentum", "conv", batches((1, 8, 8), 12, 12), "sgd", {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.001})
