"""Drawn cases of trees: random tables of nodes, with every mode, transformation and kind of weights.

Each function of DRAWN takes a generator and returns a case as make.py describes it.
"""
import numpy as np
from onnx import helper, numpy_helper

MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]


def features(rng, rows, count, dtype, missing):
    """Features from a short list of numbers, so that tests for equality hold at times."""
    if np.dtype(dtype).kind == "i":
        return rng.integers(-3, 4, (rows, count)).astype(dtype)
    x = rng.choice([-2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 3.25, 1e-40], (rows, count))
    x = np.where(rng.random(x.shape) < 0.5, rng.standard_normal(x.shape), x).astype(dtype)
    if missing:
        x[rng.random(x.shape) < 0.2] = np.nan
        x[rng.random(x.shape) < 0.05] = np.inf
    return x


def tree(rng, depth, count):
    """A tree as (feature, mode, threshold, missing, yes, no) or None for a leaf."""
    if depth == 0 or rng.random() < 0.15:
        return None
    threshold = rng.choice([-1.0, 0.0, -0.0, 0.5, 1.0, float(np.float32(rng.standard_normal()))])
    return (int(rng.integers(count)), None, float(threshold), int(rng.integers(2)), tree(rng, depth - 1, count),
            tree(rng, depth - 1, count))


def listed(rng, trees, count, modes, prefix, weights_of):
    """The attributes of trees, and for each leaf what `weights_of` gives: pairs of target and weight."""
    rows, weights = [], []
    for number in range(trees):
        nodes = [tree(rng, int(rng.integers(0, 6)), count)]
        at = 0
        while at < len(nodes):
            node = nodes[at]
            if node is None:
                rows.append((number, at, 0, "LEAF", 0.0, 0, 0, 0))
                weights += [(number, at, target, weight) for target, weight in weights_of(rng)]
            else:
                feature, _, threshold, missing, yes, no = node
                rows.append((number, at, feature, str(rng.choice(modes)), threshold, len(nodes), len(nodes) + 1, missing))
                nodes += [yes, no]
            at += 1
    names = ["treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true"]
    attributes = {f"nodes_{name}": list(column) for name, column in zip(names, zip(*rows))}
    for name, column in zip(["treeids", "nodeids", "ids", "weights"], zip(*weights)):
        attributes[f"{prefix}_{name}"] = list(column)
    return attributes


def as_tensors(attributes, prefix):
    """Floats as tensors of f64."""
    for name in ("nodes_values", f"{prefix}_weights", "base_values"):
        if name in attributes:
            attributes[name + "_as_tensor"] = numpy_helper.from_array(np.array(attributes.pop(name), np.float64))
    return attributes


def weight(rng, positive=False):
    value = float(np.float32(rng.standard_normal()))
    return abs(value) if positive else value


def setting(rng, dtypes=(np.float32, np.float32, np.float64)):
    dtype = rng.choice(dtypes)
    count, missing = int(rng.integers(1, 6)), bool(rng.integers(2))
    modes = [MODES[:1], MODES, [str(rng.choice(MODES))]][rng.integers(3)]
    rows = int(rng.choice([1, 2, 7, 8, 9, 17, 40]))
    return features(rng, rows, count, dtype, missing), count, modes, missing


def regressor(rng):
    x, count, modes, missing = setting(rng)
    targets = int(rng.choice([1, 1, 2, 3]))
    aggregate = str(rng.choice(["SUM", "SUM", "AVERAGE", "MIN", "MAX"]))
    kind = rng.integers(3)

    def weights_of(rng):
        chosen = {0: [int(rng.integers(targets))], 1: range(targets), 2: np.flatnonzero(rng.random(targets) < 0.5)}[kind]
        # ONNX Runtime reads beyond the end of a leaf without weights.
        chosen = chosen if targets > 1 and len(chosen) else [0]
        return [(int(target), weight(rng)) for target in chosen]

    attributes = listed(rng, int(rng.integers(1, 12)), count, modes, "target", weights_of)
    if not missing:
        del attributes["nodes_missing_value_tracks_true"]
    attributes |= {"n_targets": targets, "aggregate_function": aggregate}
    transform = str(rng.choice(TRANSFORMS[:1] * 3 + TRANSFORMS[:4]))
    attributes["post_transform"] = transform
    # ONNX Runtime leaves them out for targets that no leaf of a row adds to.
    if kind == 1 and rng.integers(2):
        attributes["base_values"] = [weight(rng) for _ in range(targets)]
    if x.dtype == np.float64:
        attributes = as_tensors(attributes, "target")
    return {"op": "TreeEnsembleRegressor", "inputs": [x], "attrs": attributes, "ml": 3}


def labels(rng, classes):
    chosen = [int(n) for n in rng.permutation(20)[:classes]]
    return list(range(classes)) if rng.integers(2) else chosen


def classifier_of(rng, classes, transforms):
    x, count, modes, missing = setting(rng, (np.float32, np.float32, np.float32, np.float64, np.int64, np.int32))
    positive, kind = bool(rng.integers(2)), rng.integers(3)
    one = 0 if classes == 2 and rng.integers(3) else None

    def weights_of(rng):
        if one is not None:
            return [(one, weight(rng, positive) / 5)]
        chosen = [int(rng.integers(classes))] if kind == 0 and classes > 2 else range(classes)
        return [(target, weight(rng, positive)) for target in chosen]

    attributes = listed(rng, int(rng.integers(1, 12)), count, modes, "class", weights_of)
    if not missing:
        del attributes["nodes_missing_value_tracks_true"]
    attributes["classlabels_int64s"] = labels(rng, classes) if one is not None or classes != 2 else [0, 1]
    attributes["post_transform"] = str(rng.choice(transforms))
    if classes > 2 and rng.integers(2):
        attributes["base_values"] = [weight(rng) for _ in range(classes)]
    if classes == 2 and one is not None and rng.integers(3) == 0:
        attributes["base_values"] = [weight(rng)]
    if x.dtype == np.float64:
        attributes = as_tensors(attributes, "class")
    return {"op": "TreeEnsembleClassifier", "inputs": [x], "attrs": attributes, "ml": 3, "results": [True, True]}


def binary(rng):
    return classifier_of(rng, 2, ["NONE", "LOGISTIC"])


def many(rng):
    return classifier_of(rng, int(rng.integers(3, 7)), ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])


def ensemble(rng):
    dtype = rng.choice([np.float32, np.float64])
    count, missing, targets = int(rng.integers(1, 6)), bool(rng.integers(2)), int(rng.choice([1, 1, 3]))
    x = features(rng, int(rng.choice([1, 7, 8, 30])), count, dtype, missing)
    modes = [[0], [6], list(range(6)), list(range(7))][rng.integers(4)]
    if 6 in modes:
        x = rng.integers(1, 33, x.shape).astype(dtype)
    nodes, roots, leaves, members = [], [], [], []

    def leaf():
        leaves.append((int(rng.integers(targets)), weight(rng)))
        return len(leaves) - 1

    def add(node):
        at = len(nodes)
        nodes.append(None)
        feature, _, threshold, passes, yes, no = node
        mode = int(rng.choice(modes))
        children = []
        # ONNX Runtime takes sets of integers alone.
        own = sorted({float(rng.integers(1, 33)) for _ in range(rng.integers(1, 9))})
        nodes[at] = (feature, mode, threshold, passes, own)
        for child in (yes, no):
            children += [leaf(), 1] if child is None else [add(child), 0]
        nodes[at] = (feature, mode, threshold, passes, own, *children)
        return at

    for _ in range(int(rng.integers(1, 8))):
        grown = None
        while grown is None:
            grown = tree(rng, int(rng.integers(1, 6)), count)
        roots.append(add(grown))
    for node in nodes:
        if node[1] == 6:
            members += [*node[4], np.nan]
    column = lambda i: [node[i] for node in nodes]
    tensor = lambda values, dtype: numpy_helper.from_array(np.array(values, dtype))
    attributes = {
        "tree_roots": roots, "n_targets": targets, "nodes_featureids": column(0), "nodes_modes": tensor(column(1), np.uint8),
        "nodes_splits": tensor(column(2), dtype), "nodes_truenodeids": column(5), "nodes_trueleafs": column(6),
        "nodes_falsenodeids": column(7), "nodes_falseleafs": column(8), "leaf_targetids": [leaf[0] for leaf in leaves],
        "leaf_weights": tensor([leaf[1] for leaf in leaves], dtype), "aggregate_function": int(rng.choice([1, 1, 0, 2, 3])),
        # ONNX Runtime takes 1 for 2 and the other way round.
        "post_transform": int(rng.choice([0, 0, 3])),
    }
    if missing:
        attributes["nodes_missing_value_tracks_true"] = column(3)
    if members:
        attributes["membership_values"] = tensor(members, dtype)
    return {"op": "TreeEnsemble", "inputs": [x], "attrs": attributes, "ml": 5}


DRAWN = {
    "TreeEnsembleRegressor": regressor, "TreeEnsembleClassifier2": binary, "TreeEnsembleClassifierN": many, "TreeEnsemble": ensemble,
}
