from rocketbed.node.broker.plain_run import take as take

SOURCE: str
