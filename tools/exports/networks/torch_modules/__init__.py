"""Networks of plain torch; each module's functions make one each."""
