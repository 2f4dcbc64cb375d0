"""Images for these tests: one with the layout of RocketMQ's own, and some that cannot be used.

The makers' Dockerfile of `apache/rocketmq` (rocketmq-docker, image-build/Dockerfile-ubuntu) puts
the distribution below the home of a user 3000 that no other user may enter, Java where JAVA_HOME
says, and an entry point before all.
"""

import io
import subprocess
import tarfile
from collections.abc import Mapping

from rocketbed.host.docker.client import Daemon

LIKE_THEIRS = """FROM {made}
USER root
RUN groupadd -g 3000 rocketmq && useradd -l -u 3000 -g 3000 -d /home/rocketmq rocketmq \\
    && mkdir -p /opt/java && ln -s /usr/lib/jvm/java-17-openjdk-* /opt/java/openjdk \\
    && rm /usr/bin/java && mkdir $ROCKETMQ_HOME/bin $ROCKETMQ_HOME/conf \\
    && chown -R 3000:3000 /home/rocketmq && chmod 750 /home/rocketmq
COPY docker-entrypoint.sh /home/rocketmq/rocketmq-{version}/bin/
ENV JAVA_HOME=/opt/java/openjdk ROCKETMQ_VERSION={version}
USER rocketmq
WORKDIR /home/rocketmq/rocketmq-{version}/bin
EXPOSE 9876 10909 10911 10912
ENTRYPOINT ["./docker-entrypoint.sh"]
CMD ["dummy"]
"""
ENTRY = "#!/bin/sh\necho 'nothing was asked for' >&2\nexit 1\n"
NO_SHELL = "FROM scratch\nCOPY docker-entrypoint.sh /\n"
NO_ROCKETMQ = """FROM {made}
USER root
RUN rm -r /home/rocketmq
USER 10001
"""


def build(daemon: Daemon, name: str, dockerfile: str) -> str:
    """Build it; its name."""
    files: Mapping[str, str] = {"Dockerfile": dockerfile, "docker-entrypoint.sh": ENTRY}
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for path, text in files.items():
            row = tarfile.TarInfo(path)
            row.size, row.mode = len(text.encode()), 0o755
            archive.addfile(row, io.BytesIO(text.encode()))
    command = ["docker", "--host", daemon.address, "build", "--force-rm", "-q", "-t", name, "-"]
    done = subprocess.run(command, input=context.getvalue(), capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return name
