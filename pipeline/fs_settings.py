"""What Spark's configuration says of file systems, as options of the data source, to which Spark
shows no configuration: `spark.hadoop.fs.s3a...`, and of one bucket `...fs.s3a.bucket.B...`.
"""

import os
import re
from collections.abc import Mapping, Set
from typing import Final

from rocketbed.pipeline.option_table import FS, OptionError, Settings, common_name, option_of

HADOOP: Final = "spark.hadoop."
_BUCKET: Final = re.compile(r"s3[an]?://([^/,]+)", re.IGNORECASE)


def settings_of(conf: Mapping[str, str], *places: str, given: Set[str] = frozenset()) -> Settings:
    """Those that count for some paths, directories or lists of them; none where nothing is in S3,
    so that what a session has for other work disturbs no read. `given`: options that count more, in
    lower case. Raises `OptionError`."""
    text = ",".join(places)
    buckets = {bucket.lower() for bucket in _BUCKET.findall(text)}
    is_list = any(map(_is_list, (*places, *text.split(","))))
    found = {}
    for key, value in conf.items():
        name = key.removeprefix(HADOOP)
        bucket, common = common_name(name)
        is_ours = name != key and common in FS and not {name.lower(), common} & given
        if is_ours and value and (is_list or (bucket in buckets if bucket else buckets)):
            option = option_of(common)
            try:
                found[name.lower()] = str(option.read(value))
            except ValueError as exc:
                shown = f"={value!r}" if option.is_shown else ""
                raise OptionError(
                    f"{key}{shown} of Spark's configuration: expected {exc}; the option {common}"
                    " counts more"
                ) from None
    return tuple(sorted(found.items()))


def _is_list(place: str) -> bool:
    """Whether a path may be a list of others, which nobody has read yet."""
    root = place.rpartition("=")[2].strip()
    return os.path.isfile(root) or root.endswith(".txt")
