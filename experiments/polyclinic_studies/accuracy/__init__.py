"""How close a private federation comes to pooled logistic regression, and how true its risks are."""
