"""Reports on a trace, which the command makes."""
