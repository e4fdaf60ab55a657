"""The blinded review: real and synthetic patients as a form for clinicians, and what their scores say.

Beaulieu-Jones et al. 2019 had clinicians score 50 real and 50 synthetic patients from 0 to 10 for realism.
"""
