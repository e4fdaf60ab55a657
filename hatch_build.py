"""Put server/, client/, strategies/ and sim/ under polyclinic/ in the wheel (an editable install finds them by __path__)."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOMS = ("server", "client", "strategies", "sim")


class Rooms(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"].update({name: f"polyclinic/{name}" for name in ROOMS})
