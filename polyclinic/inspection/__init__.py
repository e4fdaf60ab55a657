"""What is done with a run beside training it: attacks, audits, comparisons, the quality of its synthetic patients."""
