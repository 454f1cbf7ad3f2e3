"""Protobuf messages as bytes, without generated code: `fields` and `pack` take one layer apart and put it together again."""


def varint(n):
    out = b""
    n &= (1 << 64) - 1
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def fields(data):
    """[(number, wire type, value)]: value is an int, or bytes. ValueError: no message."""
    out, at = [], 0

    def number():
        nonlocal at
        value = shift = 0
        while shift < 64:
            if at >= len(data):
                break
            b = data[at]
            at += 1
            value |= (b & 127) << shift
            shift += 7
            if b < 128:
                return value
        raise ValueError("no varint")

    while at < len(data):
        key = number()
        wire, size = key & 7, {1: 8, 5: 4}.get(key & 7)
        if wire == 0:
            value = number()
        elif wire == 2:
            size = number()
            value = data[at:at + size]
            at += size
        elif size:
            value = int.from_bytes(data[at:at + size], "little")
            at += size
        else:
            raise ValueError("no wire type")
        if at > len(data) or key >> 3 == 0:
            raise ValueError("no field")
        out.append((key >> 3, wire, value))
    return out


def texts(data, number):
    """The length-delimited fields of one number."""
    return [value for n, wire, value in fields(data) if n == number and wire == 2]


def pack(some):
    out = b""
    for number, wire, value in some:
        out += varint(number << 3 | wire)
        if wire == 0:
            out += varint(value)
        elif wire == 2:
            out += varint(len(value)) + value
        else:
            out += (value & (1 << 8 * {1: 8, 5: 4}[wire]) - 1).to_bytes({1: 8, 5: 4}[wire], "little")
    return out
