"""File systems at URLs, opened by fsspec in one place, so that every failure to reach one is reported in the same way.
`Directory` writes the files of one directory whole, and lists them as they are now.
"""

from hopyard.filesystems.causes import SHARED, full, line_of, reaching, why
from hopyard.filesystems.directory import PART, Directory
from hopyard.filesystems.opening import (
    absolute,
    is_there,
    matching,
    names_of,
    open_to_read,
    open_url,
    rename,
    url_of,
)

__all__ = [
    "PART",
    "SHARED",
    "Directory",
    "absolute",
    "full",
    "is_there",
    "line_of",
    "matching",
    "names_of",
    "open_to_read",
    "open_url",
    "reaching",
    "rename",
    "url_of",
    "why",
]
