"""Runs real PyTorch programs and compares what gpumemtrace reports with what they really kept."""
