"""Where the units of a model are: tables, sites, layouts."""
