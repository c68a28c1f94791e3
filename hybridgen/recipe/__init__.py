"""From words to a legal plan: recipes, their files, and the rules they are checked against. No torch."""
