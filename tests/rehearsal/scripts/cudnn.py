"""A searched convolution, whose workspace is not counted, and a recurrent layer of cuDNN."""

import torch

torch.backends.cudnn.benchmark = True
images = torch.randn(4, 3, 32, 32, device="cuda")
torch.nn.Conv2d(3, 8, 3, device="cuda")(images).sum().backward()
recurrent = torch.nn.LSTM(16, 16, device="cuda")
recurrent(torch.randn(5, 2, 16, device="cuda"))
