"""What the operating system says of files."""

from __future__ import annotations

import errno

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What says that there is no room: a full disk, a user's quota, a limit of a file's size."""
