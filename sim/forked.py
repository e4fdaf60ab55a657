"""What the process that a Flower app's workers are forked from imports last, so that the workers share the memory of it."""

import gc
import sys
from importlib import import_module

if "torch" in sys.modules:
    import_module("torch._dynamo")  # the first optimizer of a process imports it, which takes a second and 60 MB

# The collector would write to every page that the workers share.
gc.collect()
gc.freeze()
