"""PDFs for tests, honest and hostile, written object by object."""

import io
import zlib
from collections.abc import Sequence

FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


def build_response(objects: Sequence[bytes], *, trailer: bytes = b"") -> bytes:
    """A PDF whose objects are numbered from 1; the first is its catalogue."""
    out = io.BytesIO(b"")
    out.write(b"%PDF-1.4\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%b\nendobj\n" % (number, body))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    for place in places:
        out.write(b"%010d 00000 n \n" % place)
    out.write(b"trailer\n<< /Size %d /Root 1 0 R %b >>\n" % (len(objects) + 1, trailer))
    out.write(b"startxref\n%d\n%%%%EOF\n" % start)
    return out.getvalue()


def stream(content: bytes, more: bytes = b"") -> bytes:
    return b"<< /Length %d %b >>\nstream\n%b\nendstream" % (len(content), more, content)


def with_pages(*contents: bytes) -> bytes:
    """One page for each content stream, given as an object."""
    count = len(contents)
    kids = b" ".join(b"%d 0 R" % (4 + 2 * index) for index in range(count))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%b] /Count %d >>" % (kids, count),
        FONT,
    ]
    for index, content in enumerate(contents):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * index)
        )
        objects.append(content)
    return build_response(objects)


def saying(*texts: str) -> bytes:
    """A page for each text, in ASCII throughout."""
    return with_pages(
        *(stream(b"BT /F1 12 Tf 20 200 Td (%b) Tj ET" % text.encode("ascii")) for text in texts)
    )


def without_text() -> bytes:
    return with_pages(stream(b"0 0 100 100 re f"))


def unpacking_to(size: int) -> bytes:
    """A short PDF whose one page has a content stream of so many bytes."""
    made = zlib.compressobj(9)
    packed = b"".join(made.compress(b" " * 2**20) for _ in range(size >> 20)) + made.flush()
    return with_pages(stream(packed, b"/Filter /FlateDecode"))


def unpacking_twice_to(size: int) -> bytes:
    """The same, compressed two times, so that it is shorter still."""
    made = zlib.compressobj(9)
    packed = b"".join(made.compress(b" " * 2**20) for _ in range(size >> 20)) + made.flush()
    return with_pages(stream(zlib.compress(packed, 9), b"/Filter [/FlateDecode /FlateDecode]"))


def turning_in_circles() -> bytes:
    """A tree of pages that has itself as a branch."""
    return build_response(
        [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 2 >>"]
    )


def nested(levels: int) -> bytes:
    return build_response([b"<< /Type /Catalog /Pages 2 0 R /X %b%b >>" % (b"[" * levels, b"]" * levels)])


def referring_to_itself() -> bytes:
    """A table of references whose predecessor is itself."""
    honest = saying("Hello")
    start = honest.rindex(b"xref\n0 ")
    return honest.replace(b"/Root 1 0 R ", b"/Root 1 0 R /Prev %d " % start)


def busy(megabytes: int) -> bytes:
    """One page that says very much and shows nothing."""
    return with_pages(stream(b"BT /F1 1 Tf (a) Tj () Tj ET\n" * (megabytes * 2**20 // 28)))


def calling_itself() -> bytes:
    """A page that draws a form, which draws itself."""
    return build_response(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            (
                b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R"
                b" /Resources << /XObject << /X 5 0 R >> >> >>"
            ),
            stream(b"/X Do /X Do"),
            stream(
                b"/X Do /X Do",
                b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X 5 0 R >> >>",
            ),
        ]
    )
