"""How bytes are encoded (docs/formats/blocks.md, Encoding and Text), and the reasons for which they are refused."""

import contextlib

CLASSES = {
    "integrity": "malformed wrong-volume not-signed stray-policy bad-history wrong-block wrong-kind bad-frame bad-tree",
    "rollback": "rollback",
    "fork": "fork",
    "expired": "superseded expired not-yet-valid revoked",
    "unsupported": "unsupported",
    "unavailable": "refused unknown-frame unproved policies-missing not-pinned damaged unavailable",
    "not-found": "not-found",
}
CLASS = {verdict: name for name, verdicts in CLASSES.items() for verdict in verdicts.split()}
EXIT_CODES = {"not-found": 10, "unsupported": 13, "integrity": 20, "rollback": 21, "fork": 22, "expired": 24}
EXIT_CODES["unavailable"] = 30


class Refused(Exception):
    """Why something is not accepted: a verdict of docs/formats/verification.md and what is wrong."""

    def __init__(self, verdict, why):
        super().__init__(why)
        self.verdict = verdict

    def exit_code(self):
        """The code of docs/cli.md."""
        return EXIT_CODES[CLASS[self.verdict]]


def malformed(why):
    return Refused("malformed", why)


def unsupported(why):
    return Refused("unsupported", why)


def unavailable(why):
    return Refused("unavailable", why)


def not_found(why):
    return Refused("not-found", why)


@contextlib.contextmanager
def refusing(verdict, where="", instead_of=("malformed",)):
    """What is malformed inside gets another verdict: who is at fault depends on where the bytes came from."""
    try:
        yield
    except Refused as error:
        found = verdict if error.verdict in instead_of else error.verdict
        raise Refused(found, f"{where}: {error}" if where else str(error)) from error


class Reader:
    """Reads bytes from the front. Every length is compared with a bound before it is used."""

    def __init__(self, data):
        self.data, self.at = bytes(data), 0

    def left(self):
        return len(self.data) - self.at

    def take(self, length):
        if length > self.left():
            raise malformed(f"{length} bytes are wanted and {self.left()} are left")
        self.at += length
        return self.data[self.at - length : self.at]

    def fixed(self, length):
        return int.from_bytes(self.take(length), "little")

    def u8(self):
        return self.fixed(1)

    def u16(self):
        return self.fixed(2)

    def u32(self):
        return self.fixed(4)

    def u64(self):
        return self.fixed(8)

    def varint(self, greatest=2**64 - 1, least=0):
        """Canonical LEB128: at most ten bytes, no trailing zero byte, at most 64 bits."""
        value = 0
        for place in range(10):
            byte = self.u8()
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                if byte == 0 and place > 0:
                    raise malformed("a varint ends with a zero byte")
                if not least <= value <= greatest:
                    raise malformed(f"{value} is not in {least} to {greatest}")
                return value
        raise malformed("a varint has more than ten bytes")

    def bytes(self, greatest, least=0):
        return self.take(self.varint(greatest, least))

    def flag(self):
        """A byte that is 0 or 1."""
        value = self.u8()
        if value > 1:
            raise malformed(f"a flag is {value}")
        return value == 1

    def end(self):
        if self.left():
            raise malformed(f"{self.left()} bytes follow the end")


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(value, length=8):
    return value.to_bytes(length, "little")


def byte_string(data):
    return varint(len(data)) + data


def ascending(items, what):
    """Requires that each item is greater than the one before it."""
    for before, after in zip(items, items[1:]):
        if before >= after:
            raise malformed(f"{what} do not ascend strictly")
    return items


BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"


def _bech32m_checksum(prefix, groups):
    check = 1
    spread = [ord(c) >> 5 for c in prefix] + [0] + [ord(c) & 31 for c in prefix]
    for group in spread + groups:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ group
        for bit, generator in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            if top >> bit & 1:
                check ^= generator
    return check


def text(prefix, data):
    """32 bytes in bech32m (BIP 350)."""
    number = int.from_bytes(data, "big") << 4  # 256 bits and 4 bits of padding are 52 groups of five
    groups = [number >> 5 * place & 31 for place in reversed(range(52))]
    check = _bech32m_checksum(prefix, groups + [0] * 6) ^ 0x2BC830A3
    groups += [check >> 5 * place & 31 for place in reversed(range(6))]
    return prefix + "1" + "".join(BECH32[group] for group in groups)


def from_text(prefix, string):
    """The 32 bytes of a text form. Refuses any string but the one that `text` gives."""
    start, body = prefix + "1", string[len(prefix) + 1 :]
    if not string.startswith(start) or len(body) != 58 or any(c not in BECH32 for c in body):
        raise malformed(f"{string!r} is not {start}… with 58 characters of bech32")
    number = 0
    for c in body[:52]:
        number = number << 5 | BECH32.index(c)
    data = (number >> 4).to_bytes(32, "big")
    if text(prefix, data) != string:
        raise malformed(f"{string!r} has a wrong checksum or padding")
    return data
