"""What tests in more than one folder share."""

pytest_plugins = ["tests.support.docker_daemon"]
