"""A separate driver that a test may kill: `stream_driver.py SOURCE SINK CHECKPOINT`.

SOURCE and SINK are JSON: options of `readStream` and of `writeStream`, format and schema among
them. It continues from the checkpoint and ends when all present records are written.
"""

import json
import sys

from rocketbed.pipeline.session import build_session
from tests.spark.conftest import CONF


def main(source: str, sink: str, checkpoint: str) -> None:
    """Run the query to its end."""
    reading, writing = json.loads(source), json.loads(sink)
    session = build_session("killed", master="local[2]", conf=CONF)
    stream = session.readStream.format("rocketbed").schema(reading.pop("schema"))
    rows = stream.options(**reading).load()
    query = rows.writeStream.format(writing.pop("format")).options(**writing)
    query = query.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start().awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
