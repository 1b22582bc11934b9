"""Jobs spread over workers: one scheduler, and two ways to reach a worker, a process or Ray."""
