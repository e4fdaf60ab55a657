"""What a model of labelled records is trained towards, a value for each: labels, outputs, loss and predictions."""
