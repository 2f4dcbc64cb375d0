SOURCE: str

def sync_each(descriptors: bytes, /) -> tuple[int, int]:
    """fdatasync of each descriptor (C's `int`) in order, without the interpreter's lock.

    The number of one that failed, with its errno: nothing is known of any then. Or how many there
    are, and 0.
    """
