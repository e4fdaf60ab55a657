"""The coordinator: phases of a run, the loop over rounds, checkpoints, the run folder, and Flower's ServerApp."""
