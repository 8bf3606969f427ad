"""Where the units of a model live: tables, sites, layouts."""
