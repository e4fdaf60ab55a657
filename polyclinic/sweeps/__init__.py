"""Sweeps: which runs there are (``plan``), how they are carried out (``carrying``), and what they come to (``tables``)."""

#: What the processes of a sweep share: modules that are loaded once, most of which its first run would load.
IMPORTED_ONCE = (
    "sklearn.model_selection", "jinja2", "polyclinic.federation", "polyclinic.client.training", "polyclinic.client.evaluation",
    "polyclinic.programs.newton", "polyclinic.programs.supervised", "polyclinic.client_app",
)  # fmt: skip
