"""The controller's register: groups on record, and the two stores that it is kept in."""
