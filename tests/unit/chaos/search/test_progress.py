"""Progress of many runs, by a clock of its own."""

from rocketbed.chaos.search.progress import EVERY_S, Progress, duration


def test_lines_come_now_and_then_with_the_time_left() -> None:
    seconds, lines = [0.0], list[str]()
    progress = Progress(100, lines.append, lambda: seconds[0])
    for _ in range(100):
        seconds[0] += EVERY_S / 4
        progress.add()
    assert lines[0] == "1 of 100 runs done, about 8 min of real time left"
    assert lines[1] == "5 of 100 runs done, about 8 min of real time left"
    assert len(lines) == 25
    assert lines[-1] == "97 of 100 runs done, about 15 s of real time left"


def test_durations_in_words() -> None:
    assert [duration(seconds) for seconds in (0.4, 89, 91, 3599, 7500)] == [
        "0 s",
        "89 s",
        "2 min",
        "1 h 0 min",
        "2 h 5 min",
    ]
