"""Runs out of GPU memory repeatedly, in every supported way. The last line is JSON: the errors
raised.

usage: oom_capture.py
"""

import asyncio
import json
import os

import torch

import gpumemtrace

kept = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
results = {"kinds": [], "same": [], "files": []}


def too_much():
    return torch.empty(1 << 42, dtype=torch.uint8, device="cuda")


def note(error, expected=None):
    results["kinds"].append(type(error).__name__)
    results["same"].append(expected is None or error is expected)
    results["files"].append(sorted(name for name in os.listdir() if "oom" in name))


try:
    with gpumemtrace.capture_oom():
        kept.append(torch.ones(1, device="cuda"))
        raise KeyError("no matter of memory")
except KeyError as error:
    note(error)

raised = None
try:
    with gpumemtrace.capture_oom():
        try:
            too_much()
        except torch.OutOfMemoryError as error:
            raised = error
            raise
except torch.OutOfMemoryError as error:
    note(error, raised)
    results["context"] = [error.__context__ is None, error.__cause__ is None, error.__traceback__.tb_next is not None]


@gpumemtrace.capture_oom("named oom")
def decorated(answer):
    if answer:
        return answer
    too_much()


@gpumemtrace.capture_oom(path="nowhere/oom")
async def awaited():
    too_much()


results["answer"] = decorated(42)
try:
    decorated(0)
except torch.cuda.OutOfMemoryError as error:
    note(error)
try:
    asyncio.run(awaited())
except torch.OutOfMemoryError as error:
    note(error)
print(json.dumps(results))
