"""Describes this machine: GPU, driver, versions, and the mapped driver library."""

from witness import *  # noqa: F403
import platform, torch
if not torch.cuda.is_available():
    give_up("PyTorch %s sees no GPU" % torch.__version__)
torch.empty(1, device="cuda")
paths = {line.split()[-1] for line in open("/proc/self/maps") if "/libcuda.so" in line}
if not paths:
    give_up("no libcuda.so is mapped, so the GPU may be simulated")
os.environ["VALIDATE_LIBCUDA"] = sorted(paths)[0]
facts = dict(torch=torch.__version__, python=platform.python_version(), runtime=torch.version.cuda, libcuda=sorted(paths),
             gpu=torch.cuda.get_device_name(0), capability="%d.%d" % torch.cuda.get_device_capability(0),
             total=torch.cuda.get_device_properties(0).total_memory, devices=torch.cuda.device_count())
version = driver().get(ctypes.c_int, "cuDriverGetVersion")
facts["driver"] = "CUDA %d.%d" % (version // 1000, version % 1000 // 10)
try:
    text = ctypes.create_string_buffer(81)
    Nvml().nvml.call("nvmlSystemGetDriverVersion", text, 80)
    facts["driver"] += ", " + text.value.decode()
except Exception as error:
    facts["driver"] += " (NVML: %s)" % error
try:
    facts["cudnn"], facts["nccl"] = torch.backends.cudnn.version(), ".".join(map(str, torch.cuda.nccl.version()))
except Exception:
    pass
emit(**facts)
exit_now()
