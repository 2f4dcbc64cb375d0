"""The controller's register: the groups, and the two stores that can hold it."""
