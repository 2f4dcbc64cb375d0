"""What a run was, for people: lines on the console, one page in a browser, JUnit for a CI."""
