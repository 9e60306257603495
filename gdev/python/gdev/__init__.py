"""gdev shares a GPU between unmodified CUDA programs: the commands that talk to its daemon."""
