"""Runs the programs of tests/host untraced and traced, and compares all that can be observed."""
