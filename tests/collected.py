"""A sink that keeps its points for the test to look at."""

from __future__ import annotations

from infersiege_agents.points import Point


class Collected:
    """A points.Sink."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.ticks = 0

    def put(self, point: Point) -> None:
        self.points.append(point)

    def tick(self) -> None:
        self.ticks += 1
