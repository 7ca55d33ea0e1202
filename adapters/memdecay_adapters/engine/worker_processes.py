"""Starting vLLM 0.32's worker processes on a CPU: their environment, and what becomes of their errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from memdecay_agents.errors import EngineError, MemDecayError


@contextmanager
def environment_of_workers(ranks: int) -> Iterator[None]:
    """Set what several CPU workers need while they are started; the caller's own process gets it all back.

    vLLM binds each rank's threads to a NUMA node of its own and refuses to start where there are fewer nodes than
    ranks: unless the user says otherwise, threads are not bound and the cores are divided among the ranks. vLLM
    also sets its process to one torch thread, for the sake of a server's scheduler: here that process is the user's.

    Args:
        ranks: worker processes; with 1 nothing is changed.
    """
    if ranks == 1:
        yield
        return
    import torch

    defaults = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(max(len(os.sched_getaffinity(0)) // ranks, 1)),
    }
    added = [name for name in defaults if name not in os.environ]
    threads = torch.get_num_threads()
    os.environ.update({name: defaults[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextmanager
def errors_of_workers(ranks: int) -> Iterator[None]:
    """Turn the failure of a worker process into ours; only its text comes back from there, and not always that.

    Raises:
        EngineError: a worker did not start.
    """
    try:
        yield
    except MemDecayError:
        raise
    except Exception as error:  # vLLM has no class of its own for it: the child's error arrives as text
        if ranks == 1:
            raise
        raise EngineError(
            where=f"one of {ranks} worker processes",
            rule=f"it did not start: {error}",
            remedy="What is wrong stands in its own error in the log above; with tensor_parallel_size=1 it is raised "
            "here. A script that starts several workers needs an `if __name__ == '__main__'` guard.",
        ) from error
