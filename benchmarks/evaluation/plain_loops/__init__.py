"""Loops of plain Keras, one for each unconditional recipe, with the recipe's networks; plain_keras.py runs them."""
