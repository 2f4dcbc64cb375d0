"""What Spark's configuration says of file systems, as options of the data source, to which Spark
shows no configuration: `spark.hadoop.fs.s3a...`, of one bucket `...fs.s3a.bucket.B...`, and
`spark.hadoop.fs.azure...`, of one account `...ACCOUNT.dfs.core.windows.net`.
"""

import os
import re
from collections.abc import Mapping, Set
from typing import Final

from rocketbed.pipeline.option_table import (
    FS,
    OptionError,
    Settings,
    common_name,
    family,
    one_host,
    option_of,
)

HADOOP: Final = "spark.hadoop."
_BUCKET: Final = re.compile(r"s3[an]?://([^/,]+)", re.IGNORECASE)
_ACCOUNT: Final = re.compile(r"abfss?://[^/,@]*@([^/,]+)", re.IGNORECASE)
_WHO_ASKS: Final = ("fs.azure.account.", "fs.azure.sas.")
"""Of these, options leave none of the configuration's: a key would count more than a signature."""


def settings_of(conf: Mapping[str, str], *places: str, given: Set[str] = frozenset()) -> Settings:
    """Those that count for some paths, directories or lists of them; none where nothing is there,
    so that what a session has for other work disturbs no read. `given`: options that count more, in
    lower case. Raises `OptionError`."""
    text = ",".join(places)
    named = {
        "fs.s3a...": set(map(str.lower, _BUCKET.findall(text))),
        "fs.azure...": set(map(one_host, _ACCOUNT.findall(text))),
    }
    is_list = any(map(_is_list, (*places, *text.split(","))))
    found = {}
    for key, value in conf.items():
        name = key.removeprefix(HADOOP)
        place, common = common_name(name)
        if name == key or common not in FS or not value or {name.lower(), common} & given:
            continue
        if common.startswith(_WHO_ASKS) and any(one.startswith(_WHO_ASKS) for one in given):
            continue
        there = named[family(common)]
        if is_list or (place in there if place else there):
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
