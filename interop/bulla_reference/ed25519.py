"""Ed25519 (RFC 8032), verified strictly (docs/formats/statements.md): the key and R are canonical and not of small
order, S is canonical, and the equation holds without a cofactor. Slow and simple. It signs only for test vectors."""

import functools
import hashlib

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT = pow(2, (P - 1) // 4, P)  # a square root of -1
IDENTITY = (0, 1, 1, 0)


def add(a, b):
    """The sum of two points in extended coordinates (X, Y, Z, T)."""
    e = (a[1] - a[0]) * (b[1] - b[0]) % P
    f = (a[1] + a[0]) * (b[1] + b[0]) % P
    g = 2 * a[3] * b[3] * D % P
    h = 2 * a[2] * b[2] % P
    e, f, g, h = f - e, h - g, h + g, f + e
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiply(scalar, point):
    result = IDENTITY
    while scalar:
        if scalar & 1:
            result = add(result, point)
        point, scalar = add(point, point), scalar >> 1
    return result


def decompress(data):
    """The point that 32 bytes encode, or None. Only the canonical encoding is accepted."""
    if len(data) != 32:
        return None
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & (2**255 - 1)
    if y >= P:
        return None
    x2 = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(x2, (P + 3) // 8, P)
    if x * x % P != x2:
        x = x * ROOT % P
    if x * x % P != x2 or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = P - x
    return x, y, 1, x * y % P


def compress(point):
    inverse = pow(point[2], -1, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def is_small(point):
    """Whether eight times the point is the identity."""
    x, y, z, _ = multiply(8, point)
    return x == 0 and y == z


@functools.lru_cache(1024)
def is_key(data):
    point = decompress(data)
    return point is not None and not is_small(point)


def hash_to_scalar(*parts):
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % L


BASE = decompress((4 * pow(5, -1, P) % P).to_bytes(32, "little"))


@functools.lru_cache(1024)
def verify(key, message, signature):
    if len(signature) != 64 or not is_key(key):
        return False
    r, s = signature[:32], int.from_bytes(signature[32:], "little")
    point = decompress(r)
    if s >= L or point is None or is_small(point):
        return False
    a = decompress(key)
    minus_a = (P - a[0], a[1], a[2], P - a[3])
    k = hash_to_scalar(r, key, message)
    return compress(add(multiply(s, BASE), multiply(k, minus_a))) == r


def sign(seed, message):
    """The signature of a message under a seed, and the key. Not safe against side channels."""
    h = hashlib.sha512(seed).digest()
    a = int.from_bytes(h[:32], "little") & (2**254 - 8) | 2**254
    key = compress(multiply(a, BASE))
    r = hash_to_scalar(h[32:], message)
    point = compress(multiply(r, BASE))
    s = (r + hash_to_scalar(point, key, message) * a) % L
    return key, point + s.to_bytes(32, "little")
