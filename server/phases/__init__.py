"""The phases of a run, one after another: hospitals enrol, are counted, train, are evaluated, and choose among generators."""
