"""Allocates growing tensors and calls cuMemGetInfo in between; then it idles."""

import argparse
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=0)
args = parser.parse_args()

kept = []
for number in range(40):
    kept.append(torch.empty(1 << (16 + number % 10), dtype=torch.uint8, device="cuda"))
    torch.cuda.mem_get_info()
    if number % 7 == 6:
        kept.clear()
        torch.cuda.empty_cache()
    time.sleep(0.01)
time.sleep(args.seconds)
