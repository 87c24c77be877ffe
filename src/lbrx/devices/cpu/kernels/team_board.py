"""The board of a team: the indices of its words; those that several threads change have cache lines to themselves."""

TICKET, DONE, WATCHING, FIELDS = 0, 16, 32, 48
FUNCTION, INTS, FLOATS, START, STOP, BLOCK, BLOCKS, LEAST, MOST, SHARES, SCRATCH, STATUS = range(FIELDS, FIELDS + 12)
BOARD_WORDS = 64

SHARES_PER_THREAD = 4  # a piece is one of so many shares of what is left
LEAST_PER_THREAD = 64  # and at least one of so many parts of the whole
