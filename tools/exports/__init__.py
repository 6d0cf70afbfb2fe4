"""Models as real exporters write them, for comparisons with ONNX Runtime (docs/exports.md).

Networks of torchvision, timm, transformers and plain torch with seeded weights, exported by both
exporters of torch on first use into the git-ignored `.cache/exports` of the checkout.
"""
