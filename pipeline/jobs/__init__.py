"""The jobs behind `rocketbed pipeline`: each a function that gets a `Job` and fills its report."""
