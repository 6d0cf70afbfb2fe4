"""Writers of model files: one folder per format."""
