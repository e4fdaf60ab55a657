"""The audit of a task: canaries trained by the task's own code, and checks of its sensitivity, noise and sampling."""
