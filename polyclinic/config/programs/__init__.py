"""The sections of the kinds of run that have keys of their own. Each file states what its kind is to the configuration.

What a kind of run does is its program's (``polyclinic.programs``).
"""
