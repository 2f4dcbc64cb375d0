SOURCE: str

def sync_each(descriptors: bytes, /) -> tuple[int, int]:
    """fdatasync of each descriptor (C's `int`) in order, without the interpreter's lock.

    How many were synced, and the errno of the next one; 0 if there is none.
    """
