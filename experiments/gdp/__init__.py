"""The accounting table's committed results; the experiment is ``polyclinic.reproduce.gdp``."""
