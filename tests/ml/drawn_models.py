"""Drawn cases of linear models, support vector machines and operators on features."""
import numpy as np

TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]


def rows_of(rng, count, dtypes=(np.float32, np.float32, np.float64, np.int64, np.int32)):
    rows, dtype = int(rng.choice([1, 3, 8, 21])), np.dtype(rng.choice(dtypes))
    if dtype.kind == "i":
        return rng.integers(-4, 5, (rows, count)).astype(dtype)
    return rng.standard_normal((rows, count)).astype(dtype)


def floats(rng, count, scale=1.0):
    return [float(np.float32(x)) for x in rng.standard_normal(count) * scale]


def labels(rng, classes):
    return [int(n) for n in rng.permutation(20)[:classes]]


def linear_regressor(rng):
    count, targets = int(rng.integers(1, 9)), int(rng.choice([1, 2, 5]))
    attributes = {"coefficients": floats(rng, count * targets), "targets": targets, "post_transform": str(rng.choice(TRANSFORMS))}
    if rng.integers(2):
        attributes["intercepts"] = floats(rng, targets)
    return {"op": "LinearRegressor", "inputs": [rows_of(rng, count, (np.float32,))], "attrs": attributes}


def linear_classifier(rng):
    count, classes = int(rng.integers(1, 9)), int(rng.choice([1, 2, 3, 6]))
    attributes = {
        "coefficients": floats(rng, count * classes), "intercepts": floats(rng, classes),
        "classlabels_ints": labels(rng, max(classes, 2)), "post_transform": str(rng.choice(TRANSFORMS)),
    }
    return {"op": "LinearClassifier", "inputs": [rows_of(rng, count)], "attrs": attributes, "results": [True, True]}


def kernel(rng, attributes):
    kind = str(rng.choice(["LINEAR", "POLY", "RBF", "SIGMOID"]))
    attributes["kernel_type"] = kind
    attributes["kernel_params"] = [float(np.float32(rng.uniform(0.05, 0.5))), float(np.float32(rng.uniform(0, 1))), float(rng.integers(1, 4))]


def svm_regressor(rng):
    count, vectors = int(rng.integers(1, 9)), int(rng.choice([0, 1, 4, 9]))
    attributes = {"rho": floats(rng, 1), "one_class": int(rng.integers(4) == 0)}
    if vectors:
        attributes |= {"coefficients": floats(rng, vectors), "support_vectors": floats(rng, vectors * count), "n_supports": vectors}
        kernel(rng, attributes)
    else:
        attributes |= {"coefficients": floats(rng, count), "kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0]}
    return {"op": "SVMRegressor", "inputs": [rows_of(rng, count, (np.float32,))], "attrs": attributes}


def svm_classifier(rng):
    count, classes = int(rng.integers(1, 9)), int(rng.choice([2, 2, 3, 5]))
    attributes = {"classlabels_ints": labels(rng, classes), "post_transform": str(rng.choice(TRANSFORMS))}
    if rng.integers(4) == 0:
        attributes |= {"coefficients": floats(rng, classes * count), "rho": floats(rng, 1), "kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0]}
    else:
        per_class, pairs = [int(n) for n in rng.integers(1, 5, classes)], classes * (classes - 1) // 2
        vectors = sum(per_class)
        attributes |= {
            "vectors_per_class": per_class, "support_vectors": floats(rng, vectors * count), "rho": floats(rng, pairs),
            "coefficients": floats(rng, (classes - 1) * vectors),
        }
        if rng.integers(2):
            attributes |= {"prob_a": [-abs(x) for x in floats(rng, pairs)], "prob_b": floats(rng, pairs, 0.1)}
        kernel(rng, attributes)
    return {"op": "SVMClassifier", "inputs": [rows_of(rng, count)], "attrs": attributes, "results": [True, True]}


def scaler(rng):
    count = int(rng.integers(1, 9))
    own = count if rng.integers(2) else 1
    attributes = {"offset": floats(rng, own), "scale": floats(rng, own)}
    return {"op": "Scaler", "inputs": [rows_of(rng, count)], "attrs": attributes}


def normalizer(rng):
    x = rows_of(rng, int(rng.integers(1, 9)))
    if rng.integers(3) == 0:
        x[0] = 0
    return {"op": "Normalizer", "inputs": [x], "attrs": {"norm": str(rng.choice(["MAX", "L1", "L2"]))}}


def binarizer(rng):
    x = rows_of(rng, int(rng.integers(1, 9)), (np.float32,))
    return {"op": "Binarizer", "inputs": [x], "attrs": {"threshold": float(rng.choice([0.0, 0.5, -1.0]))}}


def imputer(rng):
    count = int(rng.integers(1, 9))
    x = rows_of(rng, count, (np.float32, np.int64))
    own = count if rng.integers(2) else 1
    if x.dtype == np.int64:
        attributes = {"imputed_value_int64s": [int(n) for n in rng.integers(10, 99, own)], "replaced_value_int64": int(rng.integers(-4, 5))}
    else:
        replaced = float("nan") if rng.integers(2) else 1.0
        x[rng.random(x.shape) < 0.3] = replaced
        attributes = {"imputed_value_floats": floats(rng, own), "replaced_value_float": replaced}
    return {"op": "Imputer", "inputs": [x], "attrs": attributes}


def feature_vectorizer(rng):
    rows, parts = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    dtype = np.dtype(rng.choice([np.float32, np.float64, np.int64, np.int32]))
    inputs = [(rng.standard_normal((rows, int(rng.integers(1, 6)))) * 3).astype(dtype) for _ in range(parts)]
    widths = [int(x.shape[1] if rng.integers(2) else rng.integers(1, 7)) for x in inputs]
    return {"op": "FeatureVectorizer", "inputs": inputs, "attrs": {"inputdimensions": widths}}


def array_feature_extractor(rng):
    dims = [int(n) for n in rng.integers(1, 6, int(rng.integers(1, 4)))]
    dtype = np.dtype(rng.choice([np.float32, np.float64, np.int64, np.int32]))
    x = (rng.standard_normal(dims) * 3).astype(dtype)
    at = rng.integers(0, dims[-1], int(rng.integers(1, 5))).astype(np.int64)
    return {"op": "ArrayFeatureExtractor", "inputs": [x, at], "stored": (1,) if rng.integers(2) else ()}


def label_encoder(rng):
    count = int(rng.choice([1, 2, 3, 8, 30]))
    kinds = ["int64s", "floats"]
    key, value = str(rng.choice(kinds)), str(rng.choice(kinds))
    shape = [int(n) for n in rng.integers(1, 8, int(rng.integers(1, 4)))]
    if key == "int64s":
        keys = [int(n) for n in rng.permutation(60)[:count] - 30]
        x = rng.choice(keys + [99, -99], shape).astype(np.int64)
    else:
        keys = [float(n) / 4 for n in rng.permutation(60)[:count] - 30]
        if rng.integers(3) == 0:
            keys[0] = float("nan")
        x = rng.choice(np.array(keys + [0.1, -0.0]), shape).astype(np.float32)
    values = [int(n) for n in rng.integers(-99, 99, count)] if value == "int64s" else floats(rng, count)
    attributes = {f"keys_{key}": keys, f"values_{value}": values}
    if rng.integers(2):
        attributes |= {"default_int64": 7} if value == "int64s" else {"default_float": 0.25}
    return {"op": "LabelEncoder", "inputs": [x], "attrs": attributes, "ml": int(rng.choice([2, 4]))}


def one_hot_encoder(rng):
    cats = [int(n) for n in rng.permutation(9)[: int(rng.integers(1, 7))]]
    dtype = np.dtype(rng.choice([np.float32, np.float64, np.int64]))
    x = rng.integers(0, 9, [int(n) for n in rng.integers(1, 6, int(rng.integers(1, 3)))]).astype(dtype)
    return {"op": "OneHotEncoder", "inputs": [x], "attrs": {"cats_int64s": cats}}


DRAWN = {
    "LinearRegressor": linear_regressor, "LinearClassifier": linear_classifier, "SVMRegressor": svm_regressor,
    "SVMClassifier": svm_classifier, "Scaler": scaler, "Normalizer": normalizer, "Binarizer": binarizer, "Imputer": imputer,
    "FeatureVectorizer": feature_vectorizer, "ArrayFeatureExtractor": array_feature_extractor, "LabelEncoder": label_encoder,
    "OneHotEncoder": one_hot_encoder,
}
