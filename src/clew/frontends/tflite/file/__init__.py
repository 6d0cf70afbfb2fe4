"""What a TFLite file holds."""
