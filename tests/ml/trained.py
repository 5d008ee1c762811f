#!/usr/bin/env python3
"""Small models that scikit-learn, LightGBM and XGBoost train, as cases with what ONNX Runtime computes.

    python3 tests/ml/trained.py        makes trained.zip, which tests/tests/ml.rs runs

It needs the packages scikit-learn, skl2onnx, lightgbm, xgboost, onnxmltools and onnxruntime (1.31). Results that are texts are
stored as their positions among the labels, maps as the tensors of their values.
"""
import pathlib, warnings, zipfile

import lightgbm
import numpy as np
import onnxmltools
import onnxruntime as ort
import xgboost
from onnx import numpy_helper
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from sklearn.ensemble import ExtraTreesRegressor, GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer, Normalizer, StandardScaler
from sklearn.svm import SVC, SVR

HERE = pathlib.Path(__file__).parent
FEATURES = 6
COLOURS = np.array(["blue", "green", "red"])


def data():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((160, FEATURES)).astype(np.float32)
    score = x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + 0.3 * x[:, 3]
    return x, score, (score > 0).astype(int), np.digitize(score, [-0.6, 0.6])


def models():
    x, score, two, three = data()
    skl = lambda model, y, **options: to_onnx(model.fit(x, y), x[:1], options=options)
    inputs = [("X", FloatTensorType([None, FEATURES]))]
    yield "forest", skl(RandomForestClassifier(6, max_depth=4, random_state=0), three, zipmap=False)
    yield "forest of two", skl(RandomForestClassifier(6, max_depth=4, random_state=0), two, zipmap=False)
    yield "maps and texts", skl(GradientBoostingClassifier(n_estimators=4, random_state=0), COLOURS[three], zipmap=True)
    yield "extra trees", skl(ExtraTreesRegressor(8, max_depth=4, random_state=0), score)
    missing = x.copy()
    missing[::3, 0] = np.nan
    tree = lightgbm.LGBMClassifier(n_estimators=8, num_leaves=7, min_child_samples=4, verbose=-1).fit(missing, two)
    yield "lightgbm", onnxmltools.convert_lightgbm(tree, initial_types=inputs, zipmap=False)
    tree = lightgbm.LGBMClassifier(n_estimators=4, num_leaves=7, min_child_samples=4, verbose=-1).fit(x, three)
    yield "lightgbm of three", onnxmltools.convert_lightgbm(tree, initial_types=inputs, zipmap=False)
    tree = xgboost.XGBRegressor(n_estimators=8, max_depth=3).fit(x, score)
    yield "xgboost", onnxmltools.convert_xgboost(tree, initial_types=inputs)
    yield "svc", skl(SVC(probability=True, random_state=0), three, zipmap=False)
    yield "svr", skl(SVR(), score)
    scaled = make_pipeline(StandardScaler(), Normalizer(), LogisticRegression())
    yield "pipeline", skl(scaled, COLOURS[three], zipmap=False)
    yield "naive Bayes", skl(GaussianNB(), COLOURS[three], zipmap=False)
    yield "binary pipeline", skl(make_pipeline(Binarizer(threshold=0.25), LogisticRegression()), two, zipmap=False)


def stored(result):
    """A result as a tensor."""
    if isinstance(result, list):
        return np.array([list(row.values()) for row in result], np.float32)
    return np.searchsorted(COLOURS, result).astype(np.int64) if result.dtype.kind in "OU" else result


def main():
    warnings.simplefilter("ignore")
    x = data()[0][:70].copy()
    x[::5, 0] = np.nan
    with zipfile.ZipFile(HERE / "trained.zip", "w") as archive:
        for name, model in models():
            given = x if name == "lightgbm" else np.nan_to_num(x)
            options = ort.SessionOptions()
            options.log_severity_level = 4
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            results = session.run(None, {session.get_inputs()[0].name: given})
            files = {"model.onnx": model.SerializeToString(), "input_0.pb": numpy_helper.from_array(given).SerializeToString()}
            files |= {f"output_{i}.pb": numpy_helper.from_array(stored(r)).SerializeToString() for i, r in enumerate(results)}
            for file, content in files.items():
                entry = zipfile.ZipInfo(f"{name}/{file}", (1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content)
            print(f"{name}: {len(files['model.onnx'])} bytes")


if __name__ == "__main__":
    main()
