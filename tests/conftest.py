"""What tests in more than one folder share."""

pytest_plugins = ["tests.docker_daemon"]
