"""What judges synthetic patients against real ones: columns, pairs, codes, pictures, and what may be learned from them.

Pure functions on arrays and tables. None of it is private: the numbers are exact functions of the real rows given, so
those rows are held-out or public ones, or the numbers stay at home. An undefined value is ``None``, never a number.
"""
