"""The other files that clew reads: saved models, texts, schedules, arrays, lists of layers."""
