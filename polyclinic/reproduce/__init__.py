"""Published experiments, run again: ``polyclinic reproduce NAME``.

What was published and what is found stand side by side; what is missed is said to be. The list is in ``experiment``.
"""
