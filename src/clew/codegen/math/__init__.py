"""Operations and functions of scalars as instructions."""
