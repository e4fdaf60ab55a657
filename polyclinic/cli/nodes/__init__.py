"""Commands of a coordinator and of a hospital: their folders, keys and programs."""
