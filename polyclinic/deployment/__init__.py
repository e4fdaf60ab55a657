"""Real hospitals: the files, keys and processes of a coordinator and of a hospital's node, without containers.

Flower's SuperLink and SuperNode do the work. Added to them in their own processes is who may use the SuperLink's
control (``gate``) and which bundles a node runs (``bundles``).
"""
