"""From a recipe to something that trains, and to answers."""
