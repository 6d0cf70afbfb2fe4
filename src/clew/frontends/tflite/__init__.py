"""The TFLite frontend: `loader.load` reads a model file into graph IR."""
