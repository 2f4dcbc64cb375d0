"""Requests that brokers send to a nameserver."""

from rocketbed.wire.bodies import DataVersion, TopicConfig, TopicConfigTable


def topics(*names: str, counter: int = 0, state: int = 0, perm: int = 6) -> TopicConfigTable:
    """The topics that a broker registers."""
    return TopicConfigTable(
        data_version=DataVersion(counter=counter, state_version=state),
        topic_config_table={name: TopicConfig(topic_name=name, perm=perm) for name in names},
    )
