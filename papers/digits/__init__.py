"""The recipes for digits and MNIST, as the README shows them."""
