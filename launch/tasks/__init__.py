"""Tasks to begin with: one file each, and ``Supervised`` for what needs no class.

digits       a small CNN on real handwritten digits; the built-in run
net          a 10-5-2 classifier on random samples
autoencoder  14 convolutions on 512x512 pictures of noise
images       a folder of pictures: reconstruction, or class by subfolder
text         a transformer that predicts the next byte of a file
"""

from launch.tasks.metrics import accuracy, psnr
from launch.tasks.supervised import Supervised

__all__ = ["Supervised", "accuracy", "psnr"]
