"""Make tables, figures and the report of a run from its records."""
