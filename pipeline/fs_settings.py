"""Turn file system settings of Spark's configuration into options of the data source, to which
Spark shows no configuration: `spark.hadoop.fs.s3a...`, of one bucket `...fs.s3a.bucket.B...`, and
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
"""Credentials: if an option sets one, those of the configuration are ignored, since a key would
override a signature."""


def settings_of(
    conf: Mapping[str, str], *places: str, explicit: Set[str] = frozenset()
) -> Settings:
    """Return the settings that apply to some paths, directories or lists of them. Settings for
    other storage are dropped, so that they cannot disturb a read. `explicit`: options that override
    the configuration, in lower case. Raises `OptionError`."""
    text = ",".join(places)
    named = {
        "fs.s3a...": set(map(str.lower, _BUCKET.findall(text))),
        "fs.azure...": set(map(one_host, _ACCOUNT.findall(text))),
    }
    is_list = any(map(_is_list, (*places, *text.split(","))))
    settings = {}
    for key, value in conf.items():
        name = key.removeprefix(HADOOP)
        place, common = common_name(name)
        if name == key or common not in FS or not value or {name.lower(), common} & explicit:
            continue
        if common.startswith(_WHO_ASKS) and any(one.startswith(_WHO_ASKS) for one in explicit):
            continue
        places_of_family = named[family(common)]
        if is_list or (place in places_of_family if place else places_of_family):
            option = option_of(common)
            try:
                settings[name.lower()] = str(option.read(value))
            except ValueError as exc:
                value_text = f"={value!r}" if option.is_shown else ""
                raise OptionError(
                    f"{key}{value_text} of Spark's configuration: expected {exc}; the option"
                    f" {common} counts more"
                ) from None
    return tuple(sorted(settings.items()))


def _is_list(place: str) -> bool:
    """True if a path may be a list of paths, which has not been read yet."""
    root = place.rpartition("=")[2].strip()
    return os.path.isfile(root) or root.endswith(".txt")
