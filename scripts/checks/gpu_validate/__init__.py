"""The checks of scripts/gpu-validate."""
