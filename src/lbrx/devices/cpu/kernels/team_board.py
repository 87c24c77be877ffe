"""The board of a team: the indices of its words; those that several threads change have cache lines to themselves."""

TICKET, DONE, WATCHING, FIELDS = 0, 16, 32, 48
FUNCTION, INTS, FLOATS, START, STOP, BLOCK, BLOCKS, LEAST, MOST, SHARES, SCRATCH, STATUS = range(FIELDS, FIELDS + 12)
BOARD_WORDS = 64
