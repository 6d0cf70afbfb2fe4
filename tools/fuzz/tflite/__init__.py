"""Random TFLite graphs, compared with LiteRT: `python -m fuzz tflite`.

`drawing` grows a typed graph over `tflite_files`, `operators` and `quantized` are the tables of its
operators, and `engines` runs LiteRT, clew's interpreter and clew. `check` judges one graph.
"""
