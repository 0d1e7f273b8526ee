"""Records in; tables, figures and pages out."""
