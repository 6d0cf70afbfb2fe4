"""Python objects given as models that hold none, and what to write in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clew.support.errors import InputError

_FROM_TORCH: Final = "give example inputs: clew.from_torch(model.eval(), (x,))"
_CALLED: Final = (
    "wrap it in a torch.nn.Module whose forward calls it, and give example inputs: "
    "clew.from_torch(module, (x,))"
)
_WEIGHTS: Final = (
    "these are weights, without a graph. Load them into their module "
    "(model.load_state_dict(...)), then clew.from_torch(model.eval(), (x,))"
)
_SKLEARN: Final = "convert it: clew.load(skl2onnx.to_onnx(model, X[:1]))"
_KERAS: Final = "export it: model.export('model.onnx', format='onnx'), then clew.load('model.onnx')"
_JAX: Final = "export it as ONNX: jax2onnx.to_onnx(f, [shape]), then clew.load"
_ARRAY: Final = "it is one array, no model; give arrays to a compiled model"
_FILE: Final = "give the file that it was made from: clew.load('model.onnx')"
_COMPILED: Final = "it is compiled already: call it"

# By the full names of classes, their own or inherited; the first that fits.
_ADVICE: Final[Mapping[str, str]] = {
    "torch.nn.modules.module.Module": _FROM_TORCH,
    "torch.fx.graph.Graph": "make a module of it: torch.fx.GraphModule(root, graph), then "
    "clew.from_torch(module, (x,))",
    "torch._C.ScriptFunction": _CALLED,
    "torch.Tensor": _ARRAY,
    "numpy.ndarray": _ARRAY,
    "onnx.onnx_ml_pb2.GraphProto": "make a model of it: onnx.helper.make_model(graph)",
    "onnx.onnx_ml_pb2.FunctionProto": "give the model that calls it (an onnx.ModelProto)",
    "onnx.onnx_ml_pb2.NodeProto": "make a model with it: onnx.helper.make_graph, make_model",
    "sklearn.base.BaseEstimator": _SKLEARN,
    "xgboost.core.Booster": "convert it: clew.load(onnxmltools.convert_xgboost(model, "
    "initial_types=[...]))",
    "lightgbm.basic.Booster": "convert it: clew.load(onnxmltools.convert_lightgbm(model, "
    "initial_types=[...]))",
    "catboost.core.CatBoost": "export it: model.save_model('model.onnx', format='onnx')",
    "transformers.pipelines.base.Pipeline": "give the model in it: "
    "clew.from_torch(pipeline.model.eval(), (), example_inputs_by_name)",
    "diffusers.pipelines.pipeline_utils.DiffusionPipeline": "give one of the models in it: "
    "clew.from_torch(pipeline.unet.eval(), args)",
    "onnxruntime.capi.onnxruntime_inference_collection.InferenceSession": _FILE,
    "clew.api.compiled_model.CompiledModel": _COMPILED,
    "clew.serving.model.Model": _COMPILED,
    "clew.extraction.part.Part": "give the module in it: part.module",
    "builtins.list": "give one model at a time",
    "builtins.tuple": "give one model at a time",
}
# By the package of the class.
_BY_PACKAGE: Final[Mapping[str, str]] = {
    "keras": _KERAS,
    "tf_keras": _KERAS,
    "tensorflow": "convert it: model, _ = tf2onnx.convert.from_function(f, input_signature=[...]), "
    "then clew.load(model)",
    "sklearn": _SKLEARN,
    "jax": _JAX,
    "jaxlib": _JAX,
    "flax": _JAX,
    "openvino": _FILE,
    "tvm": "give the model that it was imported from",
    "timm": _FROM_TORCH,
}


def no_model(model: Any) -> InputError:
    """Returns the error for an object that is not a model. Code: I002."""
    kind = type(model)
    names = class_names(model)
    hint = next((advice for name, advice in _ADVICE.items() if name in names), "")
    if not hint and isinstance(model, Mapping):
        hint = _WEIGHTS
    if not hint:
        packages = {name.partition(".")[0] for name in names}
        hint = next((advice for name, advice in _BY_PACKAGE.items() if name in packages), "")
    if not hint and isinstance(model, type):
        hint = f"it is a class: make an object of it, {model.__name__}(...)"
    if not hint and callable(model):
        hint = _CALLED
    if not hint and hasattr(model, "read"):
        hint = "give the file's name, or its bytes: clew.load(file.read())"
    shown = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    torch = "is a PyTorch module, whose graph depends on inputs"
    what = torch if hint is _FROM_TORCH else "is not a model"
    usual = "pass a file's name, bytes, an onnx.ModelProto, or what clew.from_torch returns"
    return InputError("I002", f"{_article(shown)} {shown} {what}", hint=hint or usual)


def class_names(model: Any) -> set[str]:
    """Returns the full names of an object's classes. No library is imported."""
    return {f"{kind.__module__}.{kind.__qualname__}" for kind in type(model).__mro__}


def _article(name: str) -> str:
    return "an" if name[:1].lower() in "aeiou" else "a"
