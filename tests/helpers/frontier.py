"""A measured frontier, made by hand."""

from fedsift.papers.sift.measured import Point, Setting


def make_point(
    curve: str, label: str, alpha: float, accuracy: float, size: int, up: str, early: float = 0.0
) -> Point:
    """A point; half-way it is `early` below what it reaches."""
    return Point(curve, label, alpha, accuracy, 0.01, accuracy - early, size, size - 5, up)


def make_setting(name: str, weights: int, *points: Point) -> Setting:
    return Setting(name, "main", 20, 8, 10, weights, 15, 3, "abc", points)


IMAGES = make_setting(
    "cifar10",
    80_000,
    make_point("sift-1500", "sift, 1,500 B", 0.1, 0.68, 1500, "labels"),
    make_point("labels+bytes-100", "sift, 100 B", 0.1, 0.50, 100, "labels"),
    make_point("labels-4-bits+bytes-1500", "sift in 4 bits, 1,500 B", 0.1, 0.65, 1500, "labels"),
    make_point("fedpaq-4-parts", "FedPAQ with parts, 4 bits", 0.1, 0.66, 6600, "weights"),
    make_point("fedavg", "FedAvg", 0.1, 0.58, 320_000, "weights"),
    make_point("sift-1500", "sift, 1,500 B", 100.0, 0.66, 1500, "labels"),
    make_point("fedpaq-4-parts", "FedPAQ with parts, 4 bits", 100.0, 0.75, 6600, "weights"),
    make_point("fedavg", "FedAvg", 100.0, 0.76, 320_000, "weights"),
)
DIGITS = make_setting(
    "digits",
    6200,
    make_point("sift-150", "sift, 150 B", 0.1, 0.93, 150, "labels"),
    make_point("labels+bytes-100", "sift, 100 B", 0.1, 0.92, 100, "labels"),
    make_point("labels-4-bits+bytes-300", "sift in 4 bits, 300 B", 0.1, 0.95, 300, "labels"),
    make_point("fedpaq-4-parts", "FedPAQ with parts, 4 bits", 0.1, 0.96, 590, "weights"),
    make_point("fedavg", "FedAvg", 0.1, 0.62, 24_793, "weights"),
)
BOTH = [IMAGES, DIGITS]
