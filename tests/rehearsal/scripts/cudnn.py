"""A searched convolution, a batch norm and a recurrent layer: cuDNN's workspaces that are not counted."""

import torch

torch.backends.cudnn.benchmark = True
images = torch.randn(4, 3, 32, 32, device="cuda")
torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).cuda()(images).sum().backward()
recurrent = torch.nn.LSTM(16, 16, device="cuda")
recurrent(torch.randn(5, 2, 16, device="cuda"))
