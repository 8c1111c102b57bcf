"""Runs an NCCL all-reduce between two processes."""

from witness import *  # noqa: F403
import subprocess
if sys.argv[1:] == []:
    ranks = [subprocess.Popen([sys.executable, "program.py", str(rank)], env=dict(os.environ, RANK=str(rank), WORLD_SIZE="2"),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in range(2)]
    try:
        outputs = [rank.communicate(timeout=45)[0].decode(errors="replace") for rank in ranks]
    except subprocess.TimeoutExpired:
        give_up("NCCL: no connection between the ranks within 45 s")
    if any(rank.returncode for rank in ranks):
        lines = [line for text in outputs for line in text.splitlines() if "GPU" in line or "rror" in line]
        give_up("NCCL: " + " ".join((lines or outputs)[-2:]))
    exit_now()
import datetime
import torch
import torch.distributed as dist
dist.init_process_group("nccl", store=dist.FileStore("store", 2), rank=int(sys.argv[1]), world_size=2,
                        timeout=datetime.timedelta(seconds=40))
x = torch.ones(1 << 20, device="cuda")
dist.all_reduce(x)
emit(rank=int(sys.argv[1]), stats=stats(), sum=x[0].item())
exit_now()
