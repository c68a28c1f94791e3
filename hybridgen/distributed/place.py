"""The place that another launcher gave this process among the ranks of a job. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JoinedRank:
    """One rank of a job that another launcher started."""

    rank: int
    world: int
    local_rank: int
    """Number of this rank on its machine."""
    address: str
    """Host and port of the key-value store of rank 0 or of torchrun's agent."""
    port: int
    attempt: int
    """Number of times that torchrun has restarted the ranks."""
    agent_serves: bool
    """Whether torchrun's agent serves the store; otherwise rank 0 must."""
    has_parent: bool = False
    """Whether the process that started this one stays to watch it, as torchrun's agent and Slurm's step do."""
    secret: str = ""
    """What the ranks of the job know and others do not; "" where the launcher carries none."""
    variable: str = "RANK"
    """The variable that tells every process its rank."""
    shared: tuple[str, ...] = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    """Variables that are the same for all ranks of the job, where they are given."""
    beside: int = 0
    """Number of ranks that the launcher starts on this machine, one after the other by number; 0 if it does not say."""

    @property
    def here(self) -> range:
        """The ranks of this machine, as far as the launcher says."""
        first = self.rank - self.local_rank
        return range(first, first + self.beside)
