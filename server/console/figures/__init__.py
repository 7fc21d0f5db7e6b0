"""What the pages of figures ask for and show: decisions and shapes, without I/O."""
