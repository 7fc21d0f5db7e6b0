"""`ImageTurn`: a step has tokens of one picture at most; `blocks_outside_images`: which prefixes are reused.

Some models compute a picture whole (`Limits.whole_images`: Gemma), because its tokens attend to each other in
both directions. A step with such a picture may exceed its token budget, by less than the picture's tokens.

Engine thread; no torch.
"""

from collections.abc import Sequence

from engine.request import PromptImage


class ImageTurn:
    """Which picture a step computes: the first one that the order of requests comes to.

    So the vision tower runs for one picture a step, and a request with pictures delays others by one picture
    at a time. The first request in the order is never the one that waits.
    """

    def __init__(self, *, whole_images: bool) -> None:
        self._whole_images = whole_images
        self._taken = False

    def clip(self, images: Sequence[PromptImage], start: int, count: int) -> int:
        """The length of a chunk of at most `count` tokens from `start` on, and takes the turn if it needs it.

        It may be 0 if another picture has the turn. It is above `count` only for a picture that is computed
        whole and begins at `start`.
        """
        end = start + count
        for image in images:
            if image.end <= start or image.start >= end:
                continue
            is_cut = self._whole_images and image.end > end
            if self._taken or (is_cut and image.start > start):
                return max(image.start - start, 0)
            self._taken = True
            if is_cut:
                end = image.end
        return end - start


def blocks_outside_images(images: Sequence[PromptImage], blocks: int, block_size: int) -> int:
    """How many of the leading `blocks` of a prompt end outside of pictures that must be computed whole."""
    for image in reversed(images):
        if image.start < blocks * block_size < image.end:
            blocks = image.start // block_size
    return blocks
