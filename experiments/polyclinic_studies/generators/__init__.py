"""Published private GANs beside what beats them."""
