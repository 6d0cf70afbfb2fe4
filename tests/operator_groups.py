"""Operators that no other engine computes, by reason."""

from __future__ import annotations

from typing import Final

ELSEWHERE_UNKNOWN: Final = {
    "forms that passes after placement build": """
        batch_to_space compressed eliminate_column first_rows fourier kinds nn.conv2d_by_size
        nn.conv2d_parts nn.conv2d_winograd nn.conv3d_frames nn.dense_by_rows nn.matmul_by_rows
        nn.winograd_weight nonzero_positions room signal_phases slice_into slice_span sorted_kinds
        space_to_batch split_image split_parts
    """,
    "the form that sessions run": "overwrite",
    "sizes that depend on data": """
        best_boxes compress kept_boxes non_max_suppression nonzero size_of sized soft_best_boxes
        unique
    """,
    "values that are no tensors of numbers": """
        assume complex_of complex_parts image.decode lookup map.cast map.to_vector map.zip
        ngram_counts ngram_weights one_hot_of_keys onnx.layer optional.get optional.has
        optional.none optional.some rank.known rank.scalar sequence.at sequence.concat
        sequence.construct sequence.erase sequence.insert sequence.length sequence.split text.concat
        text.from_number text.full_match text.lookup text.normalize text.skip_grams text.split
        text.to_number
    """,
    "sequences as tensors": """
        erase_row flat.at flat.erase flat.insert flat.place flat.rest insert_row sequence.join_rows
        sequence.joined sequence.pack sequence.split_sizes sequence.unpack
    """,
    "other random numbers": "random_bits random_key random_normal random_uniform",
    "hashes of bytes": "hash_signs",
    "matrices that an index selects": "nn.gather_matmul",
}
