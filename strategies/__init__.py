"""Flower strategies by name. A strategy here is Flower's own class; anything else is named ``package.module:Name``."""
