"""What `gpumemtrace simulate` runs in the program's Python: it stops after a number of steps, and
notes where the program reads values from the GPU, which are zeros."""
