"""The dissimilarity experiment's committed results; the experiment is ``polyclinic.reproduce.dissimilarity``."""
