"""The checks of `rocketbed store fsck`, one file for each part of a store."""
