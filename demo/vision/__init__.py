"""The demo's vision-language model: it names the colour, the shape or the digit of a drawn picture."""
