"""Published experiments re-enacted: their recipes, file formats and figures."""
