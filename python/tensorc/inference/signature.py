"""What a model states of itself."""

from __future__ import annotations


class NodeArg:
    """An input or output of a model.

    ``shape`` has a number, a name, or ``None`` for each axis; ``type`` is written as in ``tensor(float)``.
    """

    __slots__ = ("name", "shape", "type")

    def __init__(self, name: str, shape: list[int | str | None] | None, type: str) -> None:
        self.name = name
        self.shape = shape if shape is not None else []
        self.type = type

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"


class ModelMetadata:
    """Who made a model, and what they wrote into it."""

    __slots__ = (
        "custom_metadata_map",
        "description",
        "domain",
        "graph_description",
        "graph_name",
        "producer_name",
        "version",
    )

    def __init__(self, stated: dict) -> None:
        self.custom_metadata_map: dict[str, str] = stated["custom_metadata_map"]
        self.description = ""
        self.domain: str = stated.get("domain", "")
        self.graph_description = ""
        self.graph_name: str = stated.get("graph_name", "")
        self.producer_name: str = stated.get("producer_name", "")
        self.version: int = stated["version"]

    def __repr__(self) -> str:
        return f"ModelMetadata(producer_name={self.producer_name!r}, graph_name={self.graph_name!r}, version={self.version})"
