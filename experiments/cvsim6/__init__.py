"""CVSim-6's committed results; the experiment is ``polyclinic.reproduce.cvsim6``."""
