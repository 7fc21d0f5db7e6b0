"""From logits to tokens: penalties, masks, top-k and top-p, log probabilities."""
