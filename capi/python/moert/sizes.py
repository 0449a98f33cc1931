"""Sizes as people write them."""
import re

_UNITS = {"": 1, "b": 1, "k": 10**3, "kb": 10**3, "kib": 2**10, "m": 10**6, "mb": 10**6,
          "mib": 2**20, "g": 10**9, "gb": 10**9, "gib": 2**30, "t": 10**12, "tb": 10**12,
          "tib": 2**40}
_LEGAL = ("legal are bytes (an int), a share of the experts in (0, 1] (a float), '25%', '8GiB', "
          "'800MB'")


def budget(value):
    """(bytes, fraction) of a budget; the one that is not meant is 0. An int is bytes, a float a
    share of the bytes of all routed experts, a string either."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"budget is {value!r}; {_LEGAL}")
    if isinstance(value, str):
        text = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z%]*)\s*", value.lower())
        if text and text[2] == "%":
            value = float(text[1]) / 100
        elif text and text[2] in _UNITS:
            value = _plain(value, float(text[1])) if not text[2] else int(
                float(text[1]) * _UNITS[text[2]])
        else:
            raise ValueError(f"budget is {value!r}; {_LEGAL}")
    if isinstance(value, float):
        if not 0 < value <= 1:
            raise ValueError(f"budget is {value}; {_LEGAL}")
        return 0, value
    if value <= 0:
        raise ValueError(f"budget is {value} bytes; {_LEGAL}")
    return value, 0.0


def _plain(written, number):
    """A number without a unit: a share up to 1, bytes where it can be a budget of them."""
    if number <= 1 and "." in written:
        return number
    if number < 1 << 20:
        raise ValueError(f"budget is {written!r}: '{written}%', or '{written}GiB'? A number "
                         f"without a unit is bytes; {_LEGAL}")
    return int(number)


def text(count):
    """1536 -> "1.5 KiB"."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
