"""Sizes that every device and the code that calls it agree on."""

from __future__ import annotations

LANES = 16  # of a vector in tile reductions
TILE = 1024  # elements that a pass puts aside at a time
REDUCTION_BLOCK = 1 << 16  # elements whose partial result is handed out together
HISTOGRAM_BITS = 12
BINS = 1 << HISTOGRAM_BITS
TABLES = 4  # neighbouring elements often fall into one bin: separate tables keep the additions independent
MOST_VECTORS = 4  # that a weight is multiplied with row by row, and not in tiles
SQUARE_TILES = (1024, 512, 256, 128, 64)  # of a product: the largest of which there are enough
TILES_WANTED = 4
RANK_DIGIT_BITS = 8
RANK_RUNS = 5  # of int64, one element each: keys and their order twice, and the ranks
RANK_RESULT_RUN = 4
RANK_TEST_KEYS_RUN = 2  # where a comparison with ranks keeps keys and outcomes
RANK_BIN_BITS = 10
RANK_BIN_SHIFT = 16  # of a float32's bits: eight octaves below the largest, 128 bins each


def rank_buffer_bytes(columns: int) -> int:
    """Bytes of the buffer in which a row is ranked: the runs, and counts for the eight digits of a key."""
    return 8 * RANK_RUNS * columns + 8 * 8 * (1 << RANK_DIGIT_BITS)
