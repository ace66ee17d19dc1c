"""How far apart colours are for people who see all of them, and for people who do not: Machado 2009, and CIEDE2000."""

from __future__ import annotations

import math

Linear = tuple[float, float, float]
"""Red, green and blue as light, from 0 to 1."""
Lab = tuple[float, float, float]

VISIONS: dict[str, tuple[Linear, Linear, Linear]] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
"""What the eye makes of a colour, as a matrix: Machado, Oliveira and Fernandes, 2009, at full severity."""


def difference(one: tuple[int, int, int], other: tuple[int, int, int], vision: str) -> float:
    """CIEDE2000 between two sRGB colours as this vision has them; about 2 is just seen."""
    return ciede2000(_lab(_seen(one, vision)), _lab(_seen(other, vision)))


def _seen(color: tuple[int, int, int], vision: str) -> Linear:
    light = [_linear(part / 255) for part in color]
    red, green, blue = (
        min(1.0, max(0.0, sum(factor * part for factor, part in zip(row, light, strict=True))))
        for row in VISIONS[vision]
    )
    return red, green, blue


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def _lab(color: Linear) -> Lab:
    red, green, blue = color
    x = _root((0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047)
    y = _root(0.2126729 * red + 0.7151522 * green + 0.0721750 * blue)
    z = _root((0.0193339 * red + 0.1191920 * green + 0.9503041 * blue) / 1.08883)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _root(part: float) -> float:
    return part ** (1 / 3) if part > 216 / 24389 else (24389 / 27 * part + 16) / 116


def ciede2000(one: Lab, other: Lab) -> float:
    """Sharma, Wu and Dalal, 2005."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    stretch = 1.5 - 0.5 * math.sqrt(mean**7 / (mean**7 + 25**7))
    a1, a2 = a1 * stretch, a2 * stretch
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1, h2 = math.degrees(math.atan2(b1, a1)) % 360, math.degrees(math.atan2(b2, a2)) % 360
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    dh = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    hue = (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2
    t = (
        1
        - 0.17 * math.cos(math.radians(hue - 30))
        + 0.24 * math.cos(math.radians(2 * hue))
        + 0.32 * math.cos(math.radians(3 * hue + 6))
        - 0.20 * math.cos(math.radians(4 * hue - 63))
    )
    dl = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2))
    dc = (c2 - c1) / (1 + 0.045 * chroma)
    dh /= 1 + 0.015 * chroma * t
    rotation = math.radians(60 * math.exp(-(((hue - 275) / 25) ** 2)))
    twist = -2 * math.sqrt(chroma**7 / (chroma**7 + 25**7)) * math.sin(rotation)
    return math.sqrt(dl**2 + dc**2 + dh**2 + twist * dc * dh)
