"""Language models saved by `transformers`: a folder with `config.json` and safetensors files.

The folder has weights but no graph. `architectures.py` turns the configuration of a model into a
`Decoder`, and `decoder.py` builds the graph of any `Decoder`; `encoders.py` and `encoder.py` do the
same for encoders.
"""
