"""Gives ranks what PyTorch itself sends through GPU memory: it would read zeros there, and fail.

Objects of object collectives go through the store of their group, since NCCL moves no bytes between
processes. Collectives of tensors stay as they are. Subgroups get communicators of their own,
because the simulated `ncclCommSplit` cannot know which other ranks chose the same color.
"""

import ctypes
import functools
import inspect
import pickle
from typing import Any, Callable, Dict, List, Optional, Tuple

Given = Dict[str, Any]


class HostCollectives:
    """Replaces functions of `torch.distributed`.

    A call is numbered within its group (or pair of ranks). All ranks of a group make its collective
    calls in one order, so equal numbers are the same call.
    """

    def __init__(self) -> None:
        self._calls: Dict[Tuple[str, str], int] = {}

    def install_objects(self) -> None:
        from torch.distributed import distributed_c10d  # type: ignore[import-not-found]

        self._c10d = distributed_c10d
        replaced = {
            "all_gather_object": self._all_gather,
            "gather_object": self._gather,
            "broadcast_object_list": self._broadcast,
            "scatter_object_list": self._scatter,
            "send_object_list": self._send,
            "recv_object_list": self._receive,
        }
        for name, on_host in replaced.items():
            self._replace(name, on_host)
        if hasattr(distributed_c10d, "_get_split_source"):
            distributed_c10d._get_split_source = lambda *_args, **_named: None
        if hasattr(distributed_c10d, "split_group"):
            distributed_c10d.split_group = self._split_group

    def install_bookkeeping(self) -> None:
        from torch import distributed  # type: ignore[import-not-found]

        if distributed.is_available():
            distributed._verify_params_across_processes = self._compare_shapes
            # DDP broadcasts the order of its buckets through GPU memory, and reads it back at once.
            self._move_bytes_in(distributed.Reducer, "_rebuild_buckets")

    def _compare_shapes(self, group: Any, tensors: List[Any], _logger: Any = None) -> None:
        shapes = [tuple(tensor.shape) for tensor in tensors]
        for rank, theirs in enumerate(self._exchange(group, shapes)):
            if theirs != shapes:
                raise RuntimeError(
                    f"DDP expects same model across all ranks, but rank {group.rank()} has {len(shapes)} params and "
                    f"rank {rank} has {len(theirs)}, or their shapes differ."
                )

    def _move_bytes_in(self, owner: Any, name: str) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def moving(*args: Any, **named: Any) -> Any:
            driver = ctypes.CDLL("libcuda.so.1")
            driver.simgpuMoveBytes(1)
            try:
                return original(*args, **named)
            finally:
                driver.simgpuMoveBytes(0)

        setattr(owner, name, moving)

    def wait_for_all(self, timeout: Any) -> None:
        """Waits until each rank of the default group has called this."""
        group = self._c10d._get_default_group()
        store, number = self._store(group), self._next_number(group, "leave")
        store.set(f"gpumemtrace/leave/{number}/{group.rank()}", "")
        store.wait([f"gpumemtrace/leave/{number}/{rank}" for rank in range(group.size())], timeout)

    def _replace(self, name: str, on_host: Callable[[Any, Given], Any]) -> None:
        original = getattr(self._c10d, name, None)
        if original is None:
            return
        signature = inspect.signature(original)

        @functools.wraps(original)
        def replaced(*args: Any, **named: Any) -> Any:
            given = signature.bind(*args, **named).arguments
            group = given.get("group") or self._c10d._get_default_group()
            if self._c10d._rank_not_in_group(group) or not self._uses_gpu(group, given.get("device")):
                return original(*args, **named)
            return on_host(group, given)

        setattr(self._c10d, name, replaced)

    def _uses_gpu(self, group: Any, device: Optional[Any]) -> bool:
        if device is None:
            device = self._c10d._get_object_coll_device(group)
        return self._has_store(group) and str(device).startswith("cuda")

    def _has_store(self, group: Any) -> bool:
        return group in self._c10d._world.pg_map

    def _store(self, group: Any) -> Any:
        return self._c10d._world.pg_map[group][1]

    def _next_number(self, group: Any, kind: str) -> int:
        key = (group.group_name, kind)
        self._calls[key] = self._calls.get(key, 0) + 1
        return self._calls[key]

    def _put(self, group: Any, key: str, value: Any) -> None:
        self._store(group).set(f"gpumemtrace/{key}", pickle.dumps(value))

    def _get(self, group: Any, key: str) -> Any:
        """Waits for the value, as long as the group's timeout."""
        return pickle.loads(self._store(group).get(f"gpumemtrace/{key}"))

    def _exchange(self, group: Any, value: Any) -> List[Any]:
        """The values of all ranks of the group."""
        number = self._next_number(group, "all")
        self._put(group, f"{number}/{group.rank()}", value)
        return [self._get(group, f"{number}/{rank}") for rank in range(group.size())]

    def _group_rank(self, group: Any, given: Given, name: str) -> int:
        """The rank of an argument `src` or `dst`, within the group."""
        within = given.get(f"group_{name}")
        if within is not None:
            return int(within)
        return int(self._c10d.get_group_rank(group, given.get(name) or 0))

    def _all_gather(self, group: Any, given: Given) -> None:
        given["object_list"][: group.size()] = self._exchange(group, given["obj"])

    def _gather(self, group: Any, given: Given) -> None:
        number = self._next_number(group, "all")
        if group.rank() != self._group_rank(group, given, "dst"):
            self._put(group, f"{number}/{group.rank()}", given["obj"])
            return
        for rank in range(group.size()):
            is_own = rank == group.rank()
            given["object_gather_list"][rank] = given["obj"] if is_own else self._get(group, f"{number}/{rank}")

    def _broadcast(self, group: Any, given: Given) -> None:
        number = self._next_number(group, "all")
        if group.rank() == self._group_rank(group, given, "src"):
            self._put(group, f"{number}", list(given["object_list"]))
        else:
            given["object_list"][:] = self._get(group, f"{number}")

    def _scatter(self, group: Any, given: Given) -> None:
        number = self._next_number(group, "all")
        if group.rank() == self._group_rank(group, given, "src"):
            for rank, value in enumerate(given["scatter_object_input_list"]):
                self._put(group, f"{number}/{rank}", value)
        given["scatter_object_output_list"][0] = self._get(group, f"{number}/{group.rank()}")

    def _send(self, group: Any, given: Given) -> None:
        pair = f"{group.rank()}-{self._group_rank(group, given, 'dst')}"
        self._put(group, f"{pair}/{self._next_number(group, pair)}", list(given["object_list"]))

    def _receive(self, group: Any, given: Given) -> int:
        source = self._group_rank(group, given, "src")
        pair = f"{source}-{group.rank()}"
        given["object_list"][:] = self._get(group, f"{pair}/{self._next_number(group, pair)}")
        return int(self._c10d.get_global_rank(group, source))

    def _split_group(self, parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, pg_options: Any = None,
                     group_desc: Any = None, **_named: Any) -> Any:
        """A group of its own for the ranks of this rank's part."""
        parent = parent_pg or self._c10d._get_default_group()
        for part in split_ranks or []:
            if parent.rank() in part:
                ranks = [self._c10d.get_global_rank(parent, rank) for rank in sorted(part)]
                return self._c10d.new_group(ranks, timeout=timeout, pg_options=pg_options, group_desc=group_desc,
                                            use_local_synchronization=True)
        return self._c10d.GroupMember.NON_GROUP_MEMBER
