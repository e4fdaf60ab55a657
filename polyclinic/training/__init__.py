"""What a hospital does with its shard: tasks as plain functions over one or many sites; nothing of Flower."""
