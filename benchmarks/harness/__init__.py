"""What the benchmark scripts share: engines, interleaved timing, the FMA peak, counted FLOPs."""
