"""Reports of a run for people: lines on the console, a page for a browser, JUnit for a CI."""
