"""Graph IR: types, expressions, modules, their text form and structure."""
