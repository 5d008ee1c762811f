#!/usr/bin/env python3
"""Cases with texts: operators that take, give or move them, and graphs as skl2onnx and onnxmltools write them.

    python3 tests/ml/texts.py                  makes texts.zip, which tests/tests/texts.rs runs, and imputed.onnx for cli/tests
    python3 tests/ml/texts.py compare TENSORC  compares the program's results on the same cases

It needs the packages numpy, onnx and onnxruntime (1.31).
"""
import pathlib, subprocess, sys, tempfile, zipfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

HERE = pathlib.Path(__file__).parent
ML, MS = "ai.onnx.ml", "com.microsoft"
CASES = {}


def texts(*values):
    return np.array(values, dtype=object)


def table(rows):
    return np.array(rows, dtype=object)


def kind(array):
    return T.STRING if array.dtype.kind in "OU" else h.np_dtype_to_tensor_dtype(array.dtype)


def case(name, nodes, inputs, outputs, stored=(), ml=4, opset=21, open_rows=True):
    """A case: nodes, inputs by name, names of outputs, stored tensors."""
    shape = lambda array: (["n"] if open_rows and array.ndim else list(array.shape[:1])) + list(array.shape[1:])
    infos = [h.make_tensor_value_info(n, kind(a), shape(a)) for n, a in inputs.items()]
    graph = h.make_graph(nodes, "case", infos, [h.make_empty_tensor_value_info(o) for o in outputs], list(stored))
    opsets = [h.make_opsetid("", opset), h.make_opsetid(ML, ml), h.make_opsetid(MS, 1)]
    model = h.make_model(graph, opset_imports=opsets, ir_version=10)
    assert name not in CASES, name
    CASES[name] = (model, inputs)


def single(name, op, inputs, attrs=None, results=1, domain="", **options):
    """A case of one node."""
    named = {f"x{i}": np.asarray(array) for i, array in enumerate(inputs)}
    outputs = [f"y{i}" for i in range(results)]
    case(name, [h.make_node(op, list(named), outputs, name="the node", domain=domain, **(attrs or {}))], named, outputs, **options)


def strings(name, values):
    return h.make_tensor(name, T.STRING, [len(values)], [v.encode() for v in values])


COLOURS = table([["red", "blue"], ["mauve", "red"], ["", "Red"], ["blue", "taupe"], ["taupe", "mauve"]])


def encoders():
    keys = ["red", "blue", "green", ""]
    encoder = lambda name, x, attrs, **options: single(f"LabelEncoder {name}", "LabelEncoder", [x], attrs, domain=ML, **options)
    encoder("integers", COLOURS, dict(keys_strings=keys, values_int64s=[3, -7, 9, 0], default_int64=99), ml=2)
    encoder("floats", COLOURS, dict(keys_strings=keys, values_floats=[0.5, -7.0, 9.0, 0.0], default_float=float("nan")), ml=2)
    encoder("texts", COLOURS, dict(keys_strings=keys, values_strings=["rouge", "bleu", "vert", "rien"], default_string="autre"), ml=2)
    encoder("texts without default", COLOURS, dict(keys_strings=keys, values_strings=["a", "b", "c", "d"]), ml=2)
    encoder("of integers", np.array([1, 2, 7]), dict(keys_int64s=[1, 2], values_strings=["one", "two"], default_string="many"), ml=2)
    encoder("of floats", np.array([0.5, 2, np.nan], np.float32), dict(keys_floats=[0.5, float("nan")], values_strings=["half", "none"]))
    encoder("twice the same key", COLOURS, dict(keys_strings=["red", "red"], values_int64s=[1, 2]), ml=2)
    encoder("first form", COLOURS, dict(classes_strings=keys, default_int64=-5), ml=1)
    encoder("first form of integers", np.array([0, 3, 4, -1]), dict(classes_strings=keys, default_string="?"), ml=1)
    tensors = dict(keys_tensor=strings("k", keys), values_tensor=strings("v", ["rouge", "bleu", "vert", "rien"]))
    encoder("tensors", COLOURS, dict(tensors, default_tensor=strings("d", ["autre"])))
    encoder("tensors and a text", COLOURS, dict(tensors, default_string="autre"))
    numbers = h.make_tensor("v", T.FLOAT, [4], [1.0, 2.0, 3.0, 4.0])
    encoder("tensor of floats", COLOURS, dict(keys_tensor=strings("k", keys), values_tensor=numbers, default_tensor=h.make_tensor("d", T.FLOAT, [1], [7.0])))
    single("OneHotEncoder", "OneHotEncoder", [COLOURS], dict(cats_strings=keys), domain=ML)
    mapper = dict(cats_strings=["red", "blue", "red"], cats_int64s=[4, 5, 6], default_int64=-3, default_string="none")
    single("CategoryMapper", "CategoryMapper", [COLOURS], mapper, domain=ML, ml=1)
    single("CategoryMapper of integers", "CategoryMapper", [np.array([4, 5, 6, 7])], mapper, domain=ML, ml=1)
    single("CategoryMapper with twice the same integer", "CategoryMapper", [np.array([4, 5, 6])], dict(mapper, cats_int64s=[4, 4, 6]), domain=ML, ml=1)


def movement():
    """Known and unknown texts are passed on; equal texts are equal wherever they come from."""
    other = table([["red", "mauve"], ["mauve", "mauve"], ["", "red"], ["Blue", "taupe"], ["mauve", "taupe"]])
    single("Equal", "Equal", [COLOURS, other])
    constant = lambda name, values: h.make_node("Constant", [], [name], **values)
    known = strings("k", ["red", "mauve"])
    case("Equal with constants", [h.make_node("Equal", ["x", "k"], ["y"]), constant("t", dict(value_string="blue")), h.make_node("Equal", ["x", "t"], ["z"])], {"x": COLOURS}, ["y", "z"], [known])
    case("constants", [constant("a", dict(value_strings=["u", "red"])), constant("b", dict(value=strings("v", ["w", "u"]))), h.make_node("Concat", ["a", "b", "x"], ["y"], axis=0)], {"x": texts("red", "q")}, ["y", "a"])
    single("Identity", "Identity", [COLOURS])
    single("Identity of one", "Identity", [np.array("only", dtype=object)])
    single("Concat", "Concat", [COLOURS, other], dict(axis=1))
    single("Transpose", "Transpose", [COLOURS], dict(perm=[1, 0]))
    single("Flatten", "Flatten", [COLOURS], dict(axis=0))
    # Of runs of several texts, ONNX Runtime 1.31 copies the first.
    single("Gather", "Gather", [COLOURS, np.array([1, -1, 0, 0, 1])], dict(axis=1))
    single("GatherElements", "GatherElements", [COLOURS, np.array([[1, 0], [0, 0]])], dict(axis=1), open_rows=False)
    single("GatherND", "GatherND", [COLOURS, np.array([[1, 0], [4, 1]])], open_rows=False)
    single("Where", "Where", [COLOURS == other, COLOURS, other])
    single("ArrayFeatureExtractor", "ArrayFeatureExtractor", [COLOURS, np.array([1])], domain=ML, open_rows=False)
    single("Split", "Split", [COLOURS], dict(axis=1, num_outputs=2), results=2)
    single("Shape", "Shape", [COLOURS])
    single("Size", "Size", [COLOURS])
    single("Unique", "Unique", [texts("b", "zz", "b", "a", "zz")], dict(sorted=0), results=4)
    ints = lambda name, values: numpy_helper.from_array(np.array(values, np.int64), name)
    node = lambda op, more, **attrs: [h.make_node(op, ["x", *more], ["y"], **attrs)]
    case("Reshape", node("Reshape", ["s"]), {"x": COLOURS}, ["y"], [ints("s", [-1])])
    case("Unsqueeze", node("Unsqueeze", ["s"]), {"x": COLOURS}, ["y"], [ints("s", [1])])
    case("Squeeze", node("Squeeze", ["s"]), {"x": COLOURS[:, :1]}, ["y"], [ints("s", [1])])
    case("Slice", node("Slice", ["a", "b", "s"]), {"x": COLOURS}, ["y"], [ints("a", [1]), ints("b", [4]), ints("s", [1])])
    case("Expand", node("Expand", ["s"]), {"x": COLOURS}, ["y"], [ints("s", [2, 1, 2])])
    case("Tile", node("Tile", ["s"]), {"x": COLOURS}, ["y"], [ints("s", [1, 2])])


def operators():
    """Operators that the host computes."""
    words = texts("Ab", "ßC", "The", "É x", "the")
    normalise = lambda name, x, **attrs: single(f"StringNormalizer {name}", "StringNormalizer", [x], dict(attrs, locale="C.UTF-8"), open_rows=False)
    normalise("upper", words, case_change_action="UPPER", stopwords=["the"], is_case_sensitive=0)
    normalise("lower", words, case_change_action="LOWER", stopwords=["The"], is_case_sensitive=1)
    normalise("nothing left", texts("Ab", "aB"), case_change_action="LOWER", stopwords=["AB"], is_case_sensitive=0)
    normalise("kept", words, stopwords=["AB", "x"], is_case_sensitive=0)
    normalise("a row", table([["Ab", "x"]]), stopwords=["x"], is_case_sensitive=1)
    normalise("without stop words", words, case_change_action="LOWER")
    lines = texts("Hello wor-ld! 42", "x", "", "a b")
    token = dict(mark=0, pad_value="#", mincharnum=1)
    tokenize = lambda name, x, **attrs: single(f"Tokenizer {name}", "Tokenizer", [x], {**token, **attrs}, domain=MS)
    tokenize("by a pattern", lines, tokenexp="[a-zA-Z0-9_]+")
    tokenize("of two characters", lines, tokenexp="[a-zA-Z0-9_]+", mincharnum=2)
    tokenize("of rows", table([["a b", "c d e"], ["f", ""]]), separators=[" "])
    tokenize("by separators", texts("a b-c  d", "x-y"), separators=[" ", "-"])
    tokenize("of characters", texts("aé b", "z"), separators=[""])
    tokenize("with marks", texts("a b", "c"), separators=[" "], mark=1)
    tokenize("of nothing", texts("", ""), separators=[" "])
    single("StringConcat", "StringConcat", [COLOURS, texts("a", "blue")], open_rows=False)
    single("StringConcat of columns", "StringConcat", [table([["a"], ["b"]]), texts("x", "y", "z")], open_rows=False)
    split = lambda name, x, **attrs: single(f"StringSplit {name}", "StringSplit", [x], attrs, results=2)
    split("white space", texts("a b  c", " x ", ""))
    split("once", texts("a b  c", " x ", ""), maxsplit=1)
    split("commas", table([["a,b,,c", ",x,"], ["", "z"]]), delimiter=",")
    split("two commas", texts("a,b,,c", ",x,", ""), delimiter=",", maxsplit=2)
    single("RegexFullMatch", "RegexFullMatch", [texts("www.google.com", "x", "a b", "été")], dict(pattern=r"www\.[\w.-]+\.\bcom\b|\w+"))
    single("Cast of texts", "Cast", [texts("1.5", "-2", "nan", "inf", " 3 ", "1e3")], dict(to=T.FLOAT))
    single("Cast to integers", "Cast", [texts("12", "-3", "7x")], dict(to=T.INT64))
    single("Cast of floats", "Cast", [np.array([1.5, 0.1, 1e10, np.nan, np.inf, -np.inf, 123456789.0, 1e-7, -0.0, 3], np.float32)], dict(to=T.STRING))
    single("Cast of integers", "Cast", [np.array([1, -5, 2**40])], dict(to=T.STRING))
    single("Cast of texts to texts", "Cast", [COLOURS], dict(to=T.STRING))
    grams = dict(mode="TF", min_gram_length=1, max_gram_length=2, max_skip_count=1, ngram_counts=[0, 3], ngram_indexes=[4, 1, 2, 3, 0])
    named = dict(grams, pool_strings=["a", "b", "c", "a", "b", "b", "c"])
    weights = [1.0, 2.0, 3.0, 4.0, 5.0]
    rows = table([["a", "b", "c", "a"], ["b", "x", "c", "y"]])
    count = lambda name, x, attrs: single(f"TfIdfVectorizer {name}", "TfIdfVectorizer", [x], attrs)
    count("counts", rows, named)
    count("a row", texts("a", "b", "q"), named)
    count("presence", rows, dict(named, mode="IDF", weights=weights))
    count("presence without weights", rows, dict(named, mode="IDF"))
    count("weighted", rows, dict(named, mode="TFIDF", weights=weights))
    count("pairs", rows, dict(named, min_gram_length=2, max_skip_count=0))
    count("integers", np.array([[1, 2, 3, 1], [2, 9, 3, 8]]), dict(grams, pool_int64s=[1, 2, 3, 1, 2, 2, 3]))
    count("short integers", np.array([[1, 2, 3, 1], [2, 9, 3, 8]], np.int32), dict(grams, pool_int64s=[1, 2, 3, 1, 2, 2, 3]))


def ints(name, values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def maps():
    """A map, which tensorc takes as two vectors, `x.keys` and `x.values`."""

    def single_map(name, op, key, element, given, attrs):
        info = onnx.ValueInfoProto(name="x")
        info.type.map_type.key_type = key
        info.type.map_type.value_type.tensor_type.elem_type = element
        graph = h.make_graph([h.make_node(op, ["x"], ["y"], name="the node", domain=ML, **attrs)], "case", [info], [h.make_empty_tensor_value_info("y")])
        CASES[name] = (h.make_model(graph, opset_imports=[h.make_opsetid("", 21), h.make_opsetid(ML, 1)], ir_version=10), {"x": given})

    words = dict(string_vocabulary=["c", "b", "a"])
    single_map("DictVectorizer", "DictVectorizer", T.STRING, T.FLOAT, {"a": 1.5, "z": 2.0, "c": 3.0}, words)
    single_map("DictVectorizer of nothing known", "DictVectorizer", T.STRING, T.FLOAT, {"q": 1.5}, words)
    single_map("DictVectorizer of integers", "DictVectorizer", T.INT64, T.FLOAT, {1: 1.5, 7: 2.0}, dict(int64_vocabulary=[7, 1, 2]))
    cast = lambda name, given, **attrs: single_map(f"CastMap {name}", "CastMap", T.INT64, T.FLOAT, given, attrs)
    cast("to floats", {3: 1.5, 1: 2.5, 0: -1.0}, cast_to="TO_FLOAT")
    cast("to integers", {3: 1.5, 1: -2.5}, cast_to="TO_INT64")
    cast("to texts", {3: 1.5, 1: 2.5}, cast_to="TO_STRING")
    cast("at positions", {3: 1.5, 1: 2.5, 9: 4.0}, map_form="SPARSE", max_map=5)


def pipelines():
    """What scikit-learn's and LightGBM's models become."""
    rng = np.random.default_rng(3)
    rows = 9
    sex = rng.choice(["male", "female", "other"], (rows, 1)).astype(object)
    port = rng.choice(["S", "C", "Q", "nan"], (rows, 1)).astype(object)
    age = rng.uniform(1, 80, (rows, 1)).astype(np.float32)
    weights = [float(np.float32(x)) for x in rng.standard_normal(30)]
    n = h.make_node
    pick = lambda source, at, name: n("ArrayFeatureExtractor", [source, f"at{at}"], [name], domain=ML)
    columns = [ints("at0", [0]), ints("at1", [1])]
    # ColumnTransformer(OneHotEncoder, StandardScaler), LogisticRegression.
    one_hot = [
        n("Concat", ["sex", "port"], ["words"], axis=1), pick("words", 0, "c0"), pick("words", 1, "c1"),
        n("OneHotEncoder", ["c0"], ["h0"], domain=ML, cats_strings=["female", "male"]),
        n("OneHotEncoder", ["c1"], ["h1"], domain=ML, cats_strings=["C", "Q", "S"]),
        n("Concat", ["h0", "h1"], ["h"], axis=2), n("Reshape", ["h", "flat"], ["hot"]),
        n("Scaler", ["age"], ["scaled"], domain=ML, offset=[30.0], scale=[0.07]), n("Concat", ["hot", "scaled"], ["x"], axis=1),
    ]
    linear = n("LinearClassifier", ["x"], ["label", "scores"], domain=ML, classlabels_strings=["died", "lived"], multi_class=1, post_transform="SOFTMAX", coefficients=weights[:12], intercepts=weights[12:14])
    normal = n("Normalizer", ["scores"], ["probabilities"], domain=ML, norm="L1")
    inputs = {"sex": sex, "port": port, "age": age}
    case("one-hot columns", [*one_hot, linear, normal], inputs, ["label", "probabilities"], [*columns, ints("flat", [-1, 5])], ml=1)
    # OrdinalEncoder before trees, with the label encoder of a target behind them.
    encode = lambda source, name, keys: n("LabelEncoder", [source], [name], domain=ML, keys_strings=keys, values_int64s=list(range(len(keys))), default_int64=-1)
    trees = dict(nodes_treeids=[0] * 5, nodes_nodeids=[0, 1, 2, 3, 4], nodes_featureids=[0, 0, 1, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"], nodes_values=[0.5, 0.0, 1.5, 0.0, 0.0], nodes_truenodeids=[1, 0, 3, 0, 0], nodes_falsenodeids=[2, 0, 4, 0, 0], class_treeids=[0] * 3, class_nodeids=[1, 3, 4], class_ids=[0, 1, 2], class_weights=[1.0, 1.0, 1.0])
    ordinal = [
        encode("sex", "e0", ["female", "male"]), encode("port", "e1", ["C", "Q", "S"]), n("Concat", ["e0", "e1"], ["e"], axis=1),
        n("Cast", ["e"], ["x"], to=T.FLOAT),
        n("TreeEnsembleClassifier", ["x"], ["label", "scores"], domain=ML, classlabels_strings=["first", "second", "third"], post_transform="NONE", **trees),
        n("Equal", ["label", "wanted"], ["hit"]),
    ]
    case("ordinal columns before trees", ordinal, {"sex": sex, "port": port}, ["label", "scores", "hit"], [strings("wanted", ["second"])], ml=2)
    # SimpleImputer of texts: what is missing becomes the most frequent one; others are passed on.
    imputed = [n("Equal", ["port", "missing"], ["is"]), n("Where", ["is", "S", "port"], ["filled"]), encode("filled", "code", ["C", "Q", "S"])]
    case("imputed texts", imputed, {"port": port}, ["filled", "code"], [strings("missing", ["nan"]), strings("S", ["S"])], ml=2)
    # TfidfVectorizer, LogisticRegression.
    pool = ["cat", "dog", "the", "the", "cat", "the", "dog"]
    vectorizer = [
        n("Reshape", ["text", "flat"], ["vector"]),
        n("StringNormalizer", ["vector"], ["lower"], case_change_action="LOWER", locale="C.UTF-8"),
        n("Tokenizer", ["lower"], ["tokens"], domain=MS, mark=0, mincharnum=2, pad_value="#", tokenexp="[a-zA-Z0-9_]+"),
        n("TfIdfVectorizer", ["tokens"], ["counts"], mode="TFIDF", min_gram_length=1, max_gram_length=2, max_skip_count=0, pool_strings=pool, ngram_counts=[0, 3], ngram_indexes=[0, 1, 2, 3, 4], weights=[1.5, 1.25, 1.0, 2.0, 2.5]),
        n("Normalizer", ["counts"], ["x"], domain=ML, norm="L2"),
        n("LinearClassifier", ["x"], ["label", "scores"], domain=ML, classlabels_strings=["felis", "canis"], multi_class=1, post_transform="SOFTMAX", coefficients=weights[:10], intercepts=weights[10:12]),
    ]
    given = table([["The cat sat. The dog did not"], ["THE DOG"], ["nothing of it"], [""], ["a cat, a cat, the cat"]])
    case("words of texts", vectorizer, {"text": given}, ["label", "scores", "x"], [ints("flat", [-1])], ml=1)
    # Texts made of results: two rounds of the host around a graph.
    made = [*ordinal[:5], n("StringConcat", ["label", "mark"], ["marked"]), encode("marked", "code", ["first class", "second class"]), n("StringConcat", ["marked", "mark"], ["twice"])]
    case("texts of results", made, {"sex": sex, "port": port}, ["twice", "code"], [strings("mark", [" class"])], ml=2)
    # What is known of an encoded column may be compared with a column of another input.
    joined = [n("StringConcat", ["sex", "port"], ["both"]), n("StringConcat", ["port", "sex"], ["turned"]), n("Equal", ["both", "turned"], ["same"]), n("Equal", ["both", "both"], ["self"]), n("Concat", ["both", "sex"], ["all"], axis=1)]
    case("joined texts", joined, {"sex": sex, "port": port}, ["same", "self", "all"])


def session(model):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def stored(array, name):
    if array.dtype.kind not in "OU":
        return numpy_helper.from_array(array, name)
    return h.make_tensor(name, T.STRING, array.shape, [str(text).encode() for text in array.ravel()])


def vectors(inputs):
    """Inputs by name, of maps their keys and values."""
    for name, given in inputs.items():
        if isinstance(given, dict):
            keys = list(given)
            yield f"{name}.keys", texts(*keys) if isinstance(keys[0], str) else np.array(keys, np.int64)
            yield f"{name}.values", np.array(list(given.values()), np.float32)
        else:
            yield name, given


def results():
    """Every case with ONNX Runtime's results, by the names of the outputs."""
    for name, (model, inputs) in CASES.items():
        run = session(model)
        found = run.run(None, inputs)
        names = [output.name for output in run.get_outputs()]
        del model.graph.output[:]
        model.graph.output.extend(h.make_tensor_value_info(o, kind(np.asarray(r)), None) for o, r in zip(names, found))
        yield name, model, dict(vectors(inputs)), dict(zip(names, map(np.asarray, found)))


def store():
    path = HERE / "texts.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, model, inputs, outputs in results():
            files = {"model.onnx": model.SerializeToString()}
            for what, arrays in (("input", inputs), ("output", outputs)):
                files |= {f"{what}_{i}.pb": stored(array, n).SerializeToString() for i, (n, array) in enumerate(arrays.items())}
            for file, content in files.items():
                entry = zipfile.ZipInfo(f"{name}/{file}", (1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content)
            if name == "imputed texts":
                (HERE / "imputed.onnx").write_bytes(files["model.onnx"])
    print(path, path.stat().st_size, "bytes", len(CASES), "cases")


def compare(program):
    """Runs the program on arrays of numpy's strings."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        model_file, given, made = (pathlib.Path(folder) / name for name in ("m.onnx", "in.npz", "out.npz"))
        for name, model, inputs, outputs in results():
            model_file.write_bytes(model.SerializeToString())
            np.savez(given, **{n: a.astype("U") if a.dtype.kind == "O" else a for n, a in inputs.items()})
            done = subprocess.run([program, "run", model_file, "--input", given, "--output", made], capture_output=True, text=True)
            wrong = [done.stderr.strip()] if done.returncode else []
            if not wrong:
                with np.load(made) as found:
                    for output, want in outputs.items():
                        got = found[output]
                        if want.dtype.kind == "O":
                            same = got.shape == want.shape and (got.astype(object) == want).all()
                        else:
                            same = got.dtype == want.dtype and got.shape == want.shape and np.allclose(got, want, 1e-5, 1e-6, equal_nan=True)
                        wrong += [] if same else [f"{output}: {got.tolist()} for {want.tolist()}"]
            failed += bool(wrong)
            print(*(f"{name}: {why}" for why in wrong), sep="\n", end="\n" if wrong else "")
    print(f"{len(CASES) - failed} equal, {failed} not")
    return failed


if __name__ == "__main__":
    for family in (encoders, movement, operators, maps, pipelines):
        family()
    sys.exit(compare(sys.argv[2]) if sys.argv[1:2] == ["compare"] else store())
