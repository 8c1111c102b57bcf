"""Trains without end and reports memory_stats() after each step."""

from witness import *  # noqa: F403
import torch
for _ in steps(sys.argv[1]):
    emit(stats=stats())
