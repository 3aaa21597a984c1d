"""Hostile image files: cut off, damaged, with a wrong header, far too large, or of another format."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image

SIDE = 64


def picture(chance: random.Random, side: int = SIDE) -> Image.Image:
    """A square on noise."""
    rng = np.random.default_rng(chance.randrange(2**32))
    pixels = rng.integers(100, 150, (side, side, 3), dtype=np.uint8)
    pixels[side // 4 : side // 2, side // 4 : side // 2] = 220
    return Image.fromarray(pixels)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def some(chance: random.Random) -> bytes:
    """A valid image in a random format."""
    kind = chance.choice(("PNG", "JPEG", "WEBP", "BMP", "TIFF"))
    return encoded(picture(chance), kind)


def truncated(chance: random.Random) -> bytes:
    data = some(chance)
    return data[: chance.randrange(len(data))]


def bit_flips(chance: random.Random) -> bytes:
    data = bytearray(some(chance))
    for _ in range(chance.choice((1, 3, 30, 300))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def header_flips(chance: random.Random) -> bytes:
    data = bytearray(some(chance))
    for _ in range(chance.choice((1, 2, 5))):
        data[chance.randrange(min(64, len(data)))] = chance.randrange(256)
    return bytes(data)


def spliced(chance: random.Random) -> bytes:
    one, other = some(chance), some(chance)
    return one[: chance.randrange(len(one))] + other[chance.randrange(len(other)) :]


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, content: bytes, depth: int = 8, colour: int = 2, between: bytes = b"") -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + between + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def lying_png(chance: random.Random) -> bytes:
    """A PNG whose header does not fit its pixels."""
    rows = zlib.compress((b"\0" + bytes(3 * SIDE)) * SIDE)
    sizes = (0, 1, SIDE, 4000, 7999, 65535, 2**31 - 1, 2**32 - 1)
    return png(chance.choice(sizes), chance.choice(sizes), rows, chance.choice((1, 8, 16, 7)), chance.randrange(8))


def bomb(chance: random.Random) -> bytes:
    """Many pixels in few bytes: some within the limit, some far beyond it."""
    side = chance.choice((3000, 7000, 9000, 20_000))
    return png(side, side, zlib.compress(bytes((side // 8 + 1) * min(side, 4000)), 9), 1, 0)


def text_bomb(chance: random.Random) -> bytes:
    """Compressed text that grows a thousandfold."""
    note = b"note\0\0" + zlib.compress(bytes(8_000_000), 9)
    between = chunk(b"zTXt", note) * chance.choice((1, 8, 40))
    profile = chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(4_000_000), 9))
    return png(SIDE, SIDE, zlib.compress((b"\0" + bytes(3 * SIDE)) * SIDE), between=chance.choice((between, profile)))


def huge_exif(chance: random.Random) -> bytes:
    exif = Image.Exif()
    exif[0x010E] = "x" * chance.choice((100, 30_000, 60_000))
    exif[0x0112] = chance.choice((1, 6, 8, 99))
    data = bytearray(encoded(picture(chance), "JPEG", exif=exif.tobytes()))
    if chance.random() < 0.7:
        for _ in range(chance.choice((1, 8))):
            data[chance.randrange(2, 400)] = chance.randrange(256)
    return bytes(data)


def polyglot(chance: random.Random) -> bytes:
    """Two things in one."""
    script = b"<html><script>alert(1)</script></html>"
    archive = b"PK\x03\x04" + bytes(26) + script
    data = some(chance)
    return chance.choice((data + script, data + archive, b"GIF89a/*" + data, b"%PDF-1.4\n" + data, script + data))


def other_format(chance: random.Random) -> bytes:
    """What Pillow could read and the service does not."""
    kind = chance.choice(("GIF", "ICO", "PPM", "TGA", "PCX", "SGI", "DDS", "MSP", "JPEG2000", "ICNS", "EPS"))
    image = picture(chance).convert("1") if kind == "MSP" else picture(chance)
    try:
        return encoded(image, kind)
    except (OSError, KeyError):  # not built in
        return b"P6 8 8 255\n" + bytes(192)


def markup(chance: random.Random) -> bytes:
    entity = '<!ENTITY a "ha">' + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9))
    return chance.choice(
        (
            b'<svg xmlns="http://www.w3.org/2000/svg" width="99999" height="99999"><rect/></svg>',
            f"<?xml version='1.0'?><!DOCTYPE x [{entity}]><x>&j;</x>".encode(),
            b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><svg>&f;</svg>',
            b"push graphic-context\nfill 'url(https://127.0.0.1/x)'\npop graphic-context",
        )
    )


def animated(chance: random.Random) -> bytes:
    frames = [picture(chance) for _ in range(chance.choice((2, 12)))]
    kind = chance.choice(("PNG", "WEBP", "TIFF"))
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:])


def odd_mode(chance: random.Random) -> bytes:
    """Valid images that are not three channels of eight bits."""
    image = picture(chance)
    deep = Image.fromarray(np.random.default_rng(chance.randrange(2**32)).integers(0, 65535, (SIDE, SIDE), np.uint16))
    return chance.choice(
        (
            encoded(deep, "PNG"),
            encoded(deep, "TIFF"),
            encoded(image.convert("CMYK"), "JPEG"),
            encoded(image.convert("CMYK"), "TIFF"),
            encoded(image.convert("P"), "PNG"),
            encoded(image.convert("1"), "PNG"),
            encoded(image.convert("LA"), "PNG"),
            encoded(image.convert("RGBA"), "WEBP"),
            encoded(image.convert("F"), "TIFF"),
            encoded(image.resize((1, 1)), "PNG"),
            encoded(image.resize((5000, 1)), "PNG"),
        )
    )


def tiff(chance: random.Random) -> bytes:
    """A TIFF whose directories point to each other or outside the file."""
    count = chance.choice((1, 5, 40))
    body = b"II*\0" + struct.pack("<I", 8)
    for number in range(count):
        tags = [
            (256, 4, 1, chance.choice((SIDE, 2**31, 65535))),
            (257, 4, 1, chance.choice((SIDE, 1, 2**31))),
            (258, 3, 1, chance.choice((8, 16, 1, 77))),
            (259, 3, 1, chance.choice((1, 5, 7, 8, 32773, 50000))),
            (262, 3, 1, chance.choice((1, 2, 3, 6))),
            (273, 4, 1, chance.choice((8, 2**32 - 1, 10**6))),
            (277, 3, 1, chance.choice((1, 3, 4, 65535))),
            (278, 4, 1, SIDE),
            (279, 4, chance.choice((1, 2**30)), chance.choice((SIDE * SIDE, 2**32 - 1))),
        ]
        entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
        last = number == count - 1
        following = chance.choice((0, 8, 2**32 - 1)) if last else len(body) + 2 + len(entries) + 4
        body += struct.pack("<H", len(tags)) + entries + struct.pack("<I", following)
    return body + bytes(SIDE * SIDE)


def noise(chance: random.Random) -> bytes:
    start = chance.choice((b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"RIFF\0\0\0\0WEBPVP8 ", b"BM", b"MM\0*"))
    return start + chance.randbytes(chance.choice((0, 1, 40, 4000)))


def good(chance: random.Random) -> bytes:
    return some(chance)


KINDS: tuple[Callable[[random.Random], bytes], ...] = (
    truncated,
    bit_flips,
    header_flips,
    spliced,
    lying_png,
    bomb,
    text_bomb,
    huge_exif,
    polyglot,
    other_format,
    markup,
    animated,
    odd_mode,
    tiff,
    noise,
    good,
)
WEIGHTS = (12, 16, 10, 6, 8, 1, 1, 6, 6, 5, 4, 3, 6, 8, 6, 4)


def mutated(seed: int) -> tuple[str, bytes]:
    """A kind and a file of that kind, both determined by the seed."""
    chance = random.Random(seed)
    (kind,) = chance.choices(KINDS, WEIGHTS)
    return kind.__name__, kind(chance)
