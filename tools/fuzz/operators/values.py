"""Sequences, optionals, strings, and the operators of classical machine learning."""

from __future__ import annotations

from onnx import TensorProto, TypeProto, helper

from fuzz.dtypes import FLOATS
from fuzz.graph import Grower, Unfit, Value
from fuzz.operators import operator

F32, I64, TEXT = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
ML = "ai.onnx.ml"


def _sequence(g: Grower) -> Value:
    """Returns a sequence of tensors: an old one or a new one."""
    found = [
        v for v in g.scope.visible() if v.type is not None and v.type.HasField("sequence_type")
    ]
    if found and g.choices.integer(0, 2):
        return g.choices.pick(found[:3])
    x = g.operand((F32, I64), (1, 3))
    return g.emit("SequenceConstruct", [x, *(g.like(x) for _ in range(g.choices.pick((1, 0, 2))))])[
        0
    ]


def _item(g: Grower, sequence: Value) -> Value:
    assert sequence.type is not None
    tensor = sequence.type.sequence_type.elem_type.tensor_type
    return g.leaf(
        tensor.elem_type,
        tuple(d.dim_value for d in tensor.shape.dim) if tensor.HasField("shape") else (2,),
    )


def _filled(g: Grower) -> Value:
    """Returns a sequence of at least one element: after an erase it may be empty."""
    sequence = _sequence(g)
    (longer,) = g.emit("SequenceInsert", [sequence, _item(g, sequence)])
    return longer


@operator("SequenceConstruct", "SequenceLength")
def construct(g: Grower) -> object:
    return g.emit("SequenceLength", [_sequence(g)])


@operator("SequenceEmpty")
def empty(g: Grower) -> object:
    (made,) = g.emit("SequenceEmpty", [], dtype=F32)
    return g.emit("SequenceInsert", [made, g.operand((F32,), (1, 3))])


@operator("SequenceAt")
def at(g: Grower) -> object:
    return g.emit("SequenceAt", [_filled(g), g.scalar(g.choices.pick((0, -1)), I64, None)])


@operator("SequenceInsert")
def insert(g: Grower) -> object:
    sequence, place = _sequence(g), None
    if g.choices.one_in(2):
        sequence, place = _filled(g), g.scalar(g.choices.pick((0, -1)), I64, None)
    return g.emit("SequenceInsert", [sequence, _item(g, sequence), place])


@operator("SequenceErase")
def erase(g: Grower) -> object:
    return g.emit("SequenceErase", [_filled(g)])


@operator("SplitToSequence")
def split_to_sequence(g: Grower) -> object:
    x = g.operand((F32, I64), (1, 3), nonempty=True)
    axis = g.axis(x.rank)
    if g.choices.one_in(2):
        return g.emit("SplitToSequence", [x], axis=axis, keepdims=g.choices.pick((None, 0)))
    return g.emit("SplitToSequence", [x, g.scalar(g.choices.pick((2, 1, 3)), I64)], axis=axis)


@operator("ConcatFromSequence")
def join(g: Grower) -> object:
    x = g.operand((F32, I64), (1, 3))
    (sequence,) = g.emit("SequenceConstruct", [x, g.like(x)])
    axis = g.axis(x.rank)
    return g.emit("ConcatFromSequence", [sequence], axis=axis, new_axis=g.choices.pick((None, 1)))


@operator("Optional", "OptionalGetElement", "OptionalHasElement")
def optional(g: Grower) -> object:
    (made,) = g.emit("Optional", [g.operand((F32, I64))])
    return g.emit(g.choices.pick(("OptionalGetElement", "OptionalHasElement")), [made])


@operator("SequenceMap")
def sequence_map(g: Grower) -> object:
    sequence = _sequence(g)
    assert sequence.type is not None
    proto = sequence.type.sequence_type.elem_type
    if proto.tensor_type.elem_type != F32:
        raise Unfit
    inner = TypeProto()
    inner.CopyFrom(proto)
    names = g.fresh("i"), g.fresh("o")
    node = helper.make_node("Tanh", [names[0]], [names[1]])
    infos = [helper.make_value_info(n, inner) for n in names]
    body = helper.make_graph([node], g.fresh("body"), infos[:1], infos[1:])
    return g.emit("SequenceMap", [sequence], types=[sequence.type], body=body)


@operator("StringConcat")
def string_concat(g: Grower) -> object:
    x = g.leaf(TEXT, g.shape(0, 2))
    return g.emit("StringConcat", [x, g.partner(x)])


@operator("RegexFullMatch")
def regex(g: Grower) -> object:
    return g.emit("RegexFullMatch", [g.leaf(TEXT, g.shape(0, 2))], pattern="[a-z]+")


@operator("StringNormalizer")
def normalizer(g: Grower) -> object:
    x = g.leaf(TEXT, (g.choices.pick((4, 1)),))
    return g.emit(
        "StringNormalizer",
        [x],
        case_change_action=g.choices.pick(("UPPER", "LOWER", "NONE")),
        is_case_sensitive=g.choices.pick((0, 1)),
        stopwords=["bc"],
    )


@operator("StringSplit")
def string_split(g: Grower) -> object:
    return g.emit(
        "StringSplit",
        [g.leaf(TEXT, (g.choices.pick((3, 1)),))],
        2,
        delimiter=g.choices.pick((None, " ")),
    )


@operator("TfIdfVectorizer")
def tfidf(g: Grower) -> object:
    x = g.leaf(TensorProto.INT32, (12,), "0:5")
    return g.emit(
        "TfIdfVectorizer",
        [x],
        mode=g.choices.pick(("TF", "IDF", "TFIDF")),
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=g.choices.pick((0, 1)),
        ngram_counts=[0, 3],
        ngram_indexes=[0, 1, 2, 3, 4],
        pool_int64s=[1, 2, 3, 1, 2, 3, 4],
    )


@operator("Binarizer", domain=ML)
def binarizer(g: Grower) -> object:
    return g.emit("Binarizer", [g.operand((F32,))], domain=ML, threshold=0.2)


@operator("Scaler", domain=ML)
def scaler(g: Grower) -> object:
    x = g.operand((F32, I64), (2, 2), nonempty=True)
    return g.emit("Scaler", [x], domain=ML, offset=[0.5] * x.sizes[1], scale=[2.0] * x.sizes[1])


@operator("Normalizer", domain=ML)
def normalizer_ml(g: Grower) -> object:
    x = g.operand((F32,), (2, 2), nonempty=True)
    return g.emit("Normalizer", [x], domain=ML, norm=g.choices.pick(("MAX", "L1", "L2")))


@operator("Imputer", domain=ML)
def imputer(g: Grower) -> object:
    x = g.leaf(F32, (3, 2), "0:3")
    return g.emit("Imputer", [x], domain=ML, imputed_value_floats=[7.0], replaced_value_float=1.0)


@operator("FeatureVectorizer", domain=ML)
def feature_vectorizer(g: Grower) -> object:
    return g.emit(
        "FeatureVectorizer",
        [g.leaf(F32, (3, 2)), g.leaf(F32, (3, 4))],
        domain=ML,
        inputdimensions=[2, 4],
    )


@operator("ArrayFeatureExtractor", domain=ML)
def feature_extractor(g: Grower) -> object:
    x = g.operand((F32, I64), (2, 3), nonempty=True)
    return g.emit(
        "ArrayFeatureExtractor",
        [x, g.leaf(I64, (g.choices.pick((2, 1)),), f"0:{x.sizes[-1]}")],
        domain=ML,
    )


@operator("OneHotEncoder", domain=ML)
def one_hot_encoder(g: Grower) -> object:
    return g.emit(
        "OneHotEncoder",
        [g.leaf(I64, g.shape(1, 2), "0:5")],
        domain=ML,
        cats_int64s=[0, 2, 3],
        zeros=g.choices.pick((None, 1)),
    )


@operator("LabelEncoder", domain=ML)
def label_encoder(g: Grower) -> object:
    x = g.leaf(I64, g.shape(1, 2), "0:5")
    return g.emit(
        "LabelEncoder",
        [x],
        domain=ML,
        keys_int64s=[0, 1, 3],
        values_floats=[0.5, 1.5, -2.0],
        default_float=9.0,
    )


@operator("LinearRegressor", domain=ML)
def linear_regressor(g: Grower) -> object:
    return g.emit(
        "LinearRegressor",
        [g.leaf(F32, (g.choices.pick((3, 1)), 4))],
        domain=ML,
        coefficients=[0.5, -1.0, 2.0, 0.25] * 2,
        intercepts=[1.0, -1.0],
        targets=2,
        post_transform=g.choices.pick((None, "LOGISTIC", "SOFTMAX")),
    )


@operator("LinearClassifier", domain=ML)
def linear_classifier(g: Grower) -> object:
    return g.emit(
        "LinearClassifier",
        [g.leaf(F32, (3, 2))],
        2,
        domain=ML,
        coefficients=[0.5, -1.0, 2.0, 0.25, 1.0, 1.5],
        intercepts=[0.1, 0.2, 0.3],
        classlabels_ints=[4, 5, 6],
        post_transform=g.choices.pick((None, "SOFTMAX", "LOGISTIC")),
    )


@operator("TreeEnsembleRegressor", domain=ML)
def tree_regressor(g: Grower) -> object:
    return g.emit(
        "TreeEnsembleRegressor",
        [g.leaf(F32, (4, 2))],
        domain=ML,
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[1, 0, 0],
        nodes_modes=[g.choices.pick(("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT")), "LEAF", "LEAF"],
        nodes_values=[0.1, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        nodes_missing_value_tracks_true=[0, 0, 0],
        nodes_hitrates=[1.0, 1.0, 1.0],
        target_ids=[0, 0],
        target_nodeids=[1, 2],
        target_treeids=[0, 0],
        target_weights=[0.5, -1.5],
        n_targets=1,
    )


@operator("SVMRegressor", domain=ML)
def svm_regressor(g: Grower) -> object:
    return g.emit(
        "SVMRegressor",
        [g.leaf(F32, (4, 2))],
        domain=ML,
        kernel_type=g.choices.pick(("LINEAR", "RBF", "POLY", "SIGMOID")),
        kernel_params=[0.5, 0.1, 2.0],
        support_vectors=[0.5, 1.0, -1.0, 0.2],
        coefficients=[1.0, -0.5],
        n_supports=2,
        rho=[0.3],
    )


assert F32 in FLOATS
