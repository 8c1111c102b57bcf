"""Uses cuBLAS, cuDNN, cuFFT, cuSOLVER and NCCL, and reports the growth of used memory."""

from witness import *  # noqa: F403
import torch
import torch.nn.functional as F

def cublas():
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        for size in (64, 1000, 4096):
            a = torch.ones(size, size, dtype=dtype, device="cuda")
            a @ a
            torch.addmm(a[0], a, a)

def cudnn():
    for benchmark in (False, True):
        torch.backends.cudnn.benchmark = benchmark
        for dtype in (torch.float32, torch.float16):
            x = torch.ones(16, 64, 56, 56, dtype=dtype, device="cuda", requires_grad=True)
            w = torch.ones(64, 64, 3, 3, dtype=dtype, device="cuda", requires_grad=True)
            F.conv2d(x, w, padding=1).sum().backward()

def cufft():
    torch.fft.fft2(torch.ones(64, 512, 512, device="cuda"))

def cusolver():
    torch.linalg.svd(torch.ones(256, 256, device="cuda"))

def nccl():
    import torch.distributed as dist
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    for count in (1, 1 << 22):
        x = torch.ones(count, device="cuda")
        dist.all_reduce(x)
        dist.broadcast(x, 0)

torch.ones(1, device="cuda")
for phase in (cublas, cudnn, cufft, cusolver, nccl):
    begin, before, reserved = now(), used(), torch.cuda.memory_reserved()
    failed = None
    try:
        phase()
    except Exception as error:
        failed = str(error)[-200:]
    after = used()
    emit(phase=phase.__name__, failed=failed, begin=begin, end=now(), grown=after - before,
        reserved=torch.cuda.memory_reserved() - reserved)
emit(stats=stats())
exit_now()
